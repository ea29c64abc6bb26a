"""Marionettes found without labels: slot attention carried through video (SAVi), bf16.

A predictor (self-attention among slots) hands the slots to the next frame, a broadcast decoder paints each slot
with an alpha mask; the loss is on optical flow that stands in as the target. First frame: slots from boxes.
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))
p = argparse.ArgumentParser()
p.add_argument("--batch", default=16, type=int)
p.add_argument("--frames", default=6, type=int)
p.add_argument("--slots", default=7, type=int)
p.add_argument("--dim", default=128, type=int)
p.add_argument("--size", default=128, type=int)
p.add_argument("--iters", default=2, type=int)
cfg = p.parse_args()


def position_grid(h, w, device):
    y, x = torch.linspace(0, 1, h, device=device), torch.linspace(0, 1, w, device=device)
    gy, gx = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([gy, gx, 1 - gy, 1 - gx], -1)


class SoftPosition(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(4, dim)

    def forward(self, x):  # (n, h, w, c)
        return x + self.proj(position_grid(x.shape[1], x.shape[2], x.device))


class FrameEncoder(nn.Module):
    def __init__(self, dim, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 5, 1, 2),
            nn.ReLU(),
            nn.Conv2d(width, width, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(width, width, 5, 1, 2),
            nn.ReLU(),
            nn.Conv2d(width, width, 5, 1, 2),
            nn.ReLU(),
        )
        self.pos = SoftPosition(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, dim), nn.ReLU(), nn.Linear(dim, dim)
        )

    def forward(self, x):
        x = self.pos(self.net(x).permute(0, 2, 3, 1))
        return self.mlp(x.flatten(1, 2))


class SlotAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**-0.5
        self.norm_in, self.norm_slots = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
        )

    def forward(self, slots, inputs, iters):
        b, s, d = slots.shape
        k, v = self.kv(self.norm_in(inputs)).chunk(2, -1)
        for _ in range(iters):
            q = self.q(self.norm_slots(slots)) * self.scale
            attn = torch.einsum("bsd,bnd->bsn", q, k).float().softmax(1) + 1e-8
            attn = attn / attn.sum(-1, keepdim=True)
            update = torch.einsum("bsn,bnd->bsd", attn, v.float())
            slots = self.gru(update.reshape(-1, d), slots.reshape(-1, d).float()).view(b, s, d)
            slots = slots + self.mlp(slots)
        return slots


class Savi(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.dim
        self.encoder, self.attend = FrameEncoder(d), SlotAttention(d)
        self.hint = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, d))
        self.predict = nn.TransformerEncoderLayer(d, 4, 4 * d, 0.0, batch_first=True)
        self.pos = SoftPosition(d)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(d, 64, 5, 2, 2, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 64, 5, 2, 2, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 64, 5, 2, 2, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 64, 5, 2, 2, output_padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 4, 3, 1, 1),
        )
        self.c = c

    def forward(self, video, boxes):
        b, t = video.shape[:2]
        features = self.encoder(video.flatten(0, 1)).unflatten(0, (b, t))
        slots, flows, masks = self.hint(boxes), [], []
        for i in range(t):
            slots = self.attend(slots, features[:, i], self.c.iters)
            g = slots.reshape(-1, 1, 1, self.c.dim).expand(-1, 8, 8, -1)
            out = self.decoder(self.pos(g).permute(0, 3, 1, 2))
            rgb, alpha = out.unflatten(0, (b, self.c.slots)).split([3, 1], 2)
            mask = alpha.float().softmax(1)
            flows.append((mask * rgb).sum(1))
            masks.append(mask.squeeze(2))
            slots = self.predict(slots)
        return torch.stack(flows, 1), torch.stack(masks, 1)


def stage(c):
    boxes = torch.rand(c.batch, c.slots, 4)
    video = torch.rand(c.batch, c.frames, 3, c.size, c.size)
    flow = torch.roll(video, 2, dims=-1) - video
    return video.cuda() * 2 - 1, flow.cuda(), boxes.cuda()


torch.manual_seed(0)
model = Savi(cfg).cuda()
opt = torch.optim.Adam(model.parameters(), lr=2e-4)
sched = torch.optim.lr_scheduler.SequentialLR(
    opt,
    [
        torch.optim.lr_scheduler.LinearLR(opt, 0.04, 1.0, 25),
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000),
    ],
    milestones=[25],
)
for step in range(STEPS):
    video, flow, boxes = stage(cfg)
    with torch.autocast("cuda", torch.bfloat16):
        guess, masks = model(video, boxes)
    loss = F.mse_loss(guess.float(), flow)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    opt.step()
    sched.step()
    busy = masks.detach().amax(2).mean().item()
    print(f"{step:4d}  loss {loss.item():.5f}  masks {busy:.3f}")
