"""Strokes of rowers: torchvision's Swin3D-T over sixteen frames at 160 px, a second head for stroke rate, two micro-batches of clips, bf16 autocast, AdamW by group."""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.video import swin3d_t


class Rower(nn.Module):
    """Phase of the stroke (12 classes) and strokes a minute, both from the pooled features."""

    def __init__(self):
        super().__init__()
        self.video = swin3d_t(weights=None)
        width = self.video.head.in_features
        self.video.head = nn.Identity()
        self.phase = nn.Sequential(nn.Dropout(0.3), nn.Linear(width, 12))
        self.rate = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(self, clips):
        z = self.video(clips)
        return {"phase": self.phase(z), "rate": 30 + 10 * self.rate(z).squeeze(1)}


def param_groups(model):
    groups = {"bias_table": [], "norm": [], "head": [], "rest": []}
    for name, p in model.named_parameters():
        if "relative_position_bias" in name:
            key = "bias_table"
        elif not name.startswith("video"):
            key = "head"
        else:
            key = "norm" if p.ndim == 1 else "rest"
        groups[key].append(p)
    return [
        {"params": groups["bias_table"], "lr": 1e-4, "weight_decay": 0.0},
        {"params": groups["norm"], "lr": 1e-4, "weight_decay": 0.0},
        {"params": groups["head"], "lr": 1e-3, "weight_decay": 0.02},
        {"params": groups["rest"], "lr": 1e-4, "weight_decay": 0.02},
    ]


def clips(n):
    """One long regatta on the host as bytes; clips start anywhere in it."""
    regatta = torch.randint(0, 256, (3, 80, 160, 160), dtype=torch.uint8)
    while True:
        starts = torch.randint(0, 64, (n,)).tolist()
        x = torch.stack([regatta[:, s : s + 16] for s in starts]).cuda()
        yield (
            x.float() / 127.5 - 1,
            torch.tensor(starts).cuda() % 12,
            24 + 16 * torch.rand(n).cuda(),
        )


ACCUMULATE = 2
with torch.device("cuda"):
    model = Rower()
optimizer = torch.optim.AdamW(param_groups(model))
data = clips(6)
model.train()
for step in range(4):
    losses = []
    for _ in range(ACCUMULATE):
        x, phase, rate = next(data)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x)
        loss = F.cross_entropy(out["phase"].float(), phase) + 0.05 * F.smooth_l1_loss(
            out["rate"].float(), rate
        )
        (loss / ACCUMULATE).backward()
        losses.append(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step}: {torch.stack(losses).mean().item():.4f}")
