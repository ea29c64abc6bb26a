"""I-JEPA: predict the momentum encoder's features of masked blocks from those of the context."""

import copy
import math
import random

import torch
import torch.nn.functional as F
import yaml
from timm.models.vision_transformer import Block, PatchEmbed
from torch import nn

params = yaml.safe_load("""
data: {batch_size: 96, crop_size: 224, patch_size: 16}
mask: {num_pred_masks: 4, pred_scale: [0.15, 0.2], aspect: [0.75, 1.5], enc_scale: [0.85, 1.0]}
meta: {embed_dim: 576, depth: 12, num_heads: 12, pred_depth: 6, pred_emb_dim: 288, use_bfloat16: true}
optimization: {ema: [0.996, 1.0], steps: 5, lr: 0.001, weight_decay: 0.04}
""")


def sincos(dim, grid):
    omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim / 4))
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    parts = [torch.outer(v.flatten().float(), omega) for v in (x, y)]
    return torch.cat([f(p) for p in parts for f in (torch.sin, torch.cos)], dim=1)[None]


def apply_masks(x, masks):
    """x: (B, N, D); masks: list of (B, K) indices -> (len(masks) * B, K, D)"""
    return torch.cat(
        [torch.gather(x, 1, m.unsqueeze(-1).expand(-1, -1, x.size(-1))) for m in masks]
    )


class ViT(nn.Module):
    def __init__(self, dim, depth, heads, size, patch):
        super().__init__()
        self.patch_embed = PatchEmbed(size, patch, 3, dim)
        self.register_buffer("pos", sincos(dim, size // patch))
        self.blocks = nn.ModuleList([Block(dim, heads, qkv_bias=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, masks=None):
        x = self.patch_embed(x) + self.pos
        if masks is not None:
            x = apply_masks(x, masks)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)


class Predictor(nn.Module):
    def __init__(self, dim, inner, depth, heads, grid):
        super().__init__()
        self.embed, self.proj = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, inner))
        self.register_buffer("pos", sincos(inner, grid))
        self.blocks = nn.ModuleList([Block(inner, heads, qkv_bias=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(inner)

    def forward(self, x, masks_x, masks):
        B = x.size(0) // len(masks_x)
        pos = self.pos.expand(B, -1, -1)
        x = self.embed(x) + apply_masks(pos, masks_x)
        n = x.size(1)
        targets = self.mask_token + apply_masks(pos, masks)
        x = torch.cat([x.repeat(len(masks), 1, 1), targets], dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.proj(self.norm(x)[:, n:])


class MultiblockMaskCollator:
    def __init__(self, cfg, grid):
        self.cfg, self.grid = cfg, grid

    def block(self, scale, aspect):
        area = self.grid**2 * scale
        h = min(self.grid - 1, round(math.sqrt(area * aspect)))
        w = min(self.grid - 1, round(math.sqrt(area / aspect)))
        return max(h, 1), max(w, 1)

    def place(self, size):
        top = random.randint(0, self.grid - size[0])
        left = random.randint(0, self.grid - size[1])
        m = torch.zeros(self.grid, self.grid, dtype=torch.bool)
        m[top : top + size[0], left : left + size[1]] = True
        return m.flatten()

    def __call__(self, batch):
        c = self.cfg
        p = self.block(random.uniform(*c["pred_scale"]), random.uniform(*c["aspect"]))
        e = self.block(random.uniform(*c["enc_scale"]), 1.0)
        pred, enc = [], []
        for _ in batch:
            blocks = [self.place(p) for _ in range(c["num_pred_masks"])]
            context = self.place(e) & ~torch.stack(blocks).any(0)
            pred.append([b.nonzero().flatten() for b in blocks])
            enc.append(context.nonzero().flatten())
        fewest = max(1, min(map(len, enc)))
        masks_enc = [torch.stack([i[:fewest] for i in enc])]
        masks_pred = [torch.stack([row[k] for row in pred]) for k in range(c["num_pred_masks"])]
        return torch.utils.data.default_collate(batch), masks_enc, masks_pred


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return torch.rand(3, 224, 224), i % 1000


def main(args):
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda:0")
    d, m, o = args["data"], args["meta"], args["optimization"]
    grid = d["crop_size"] // d["patch_size"]
    encoder = ViT(m["embed_dim"], m["depth"], m["num_heads"], d["crop_size"], d["patch_size"]).to(
        device
    )
    predictor = Predictor(
        m["embed_dim"], m["pred_emb_dim"], m["pred_depth"], m["num_heads"], grid
    ).to(device)
    target_encoder = copy.deepcopy(encoder)
    for p in target_encoder.parameters():
        p.requires_grad = False
    named = [*encoder.named_parameters(), *predictor.named_parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if not (n.endswith("bias") or p.ndim == 1)]},
            {
                "params": [p for n, p in named if n.endswith("bias") or p.ndim == 1],
                "weight_decay": 0,
            },
        ],
        lr=o["lr"],
        weight_decay=o["weight_decay"],
    )
    momentum = iter(torch.linspace(*o["ema"], o["steps"] + 1).tolist())
    loader = torch.utils.data.DataLoader(
        Pictures(),
        batch_size=d["batch_size"],
        collate_fn=MultiblockMaskCollator(args["mask"], grid),
        drop_last=True,
    )
    for itr, ((imgs, _), masks_enc, masks_pred) in enumerate(loader):
        if itr == o["steps"]:
            break
        imgs = imgs.to(device, non_blocking=True)
        masks_enc = [u.to(device, non_blocking=True) for u in masks_enc]
        masks_pred = [u.to(device, non_blocking=True) for u in masks_pred]

        def train_step():
            def forward_target():
                with torch.no_grad():
                    h = target_encoder(imgs)
                    h = F.layer_norm(h, (h.size(-1),))
                    return apply_masks(h, masks_pred)

            def forward_context():
                z = encoder(imgs, masks_enc)
                return predictor(z, masks_enc, masks_pred)

            with torch.amp.autocast("cuda", dtype=torch.bfloat16, enabled=m["use_bfloat16"]):
                h = forward_target()
                z = forward_context()
                loss = F.smooth_l1_loss(z, h)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                k = next(momentum)
                for q, p in zip(encoder.parameters(), target_encoder.parameters()):
                    p.mul_(k).add_((1.0 - k) * q.detach())
            return float(loss)

        print(
            "itr %d  masks %s %s  loss %.4f"
            % (itr, tuple(masks_enc[0].shape), tuple(masks_pred[0].shape), train_step())
        )


if __name__ == "__main__":
    main(params)
