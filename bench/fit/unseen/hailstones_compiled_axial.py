"""Nowcasts of hail from radar: axial attention over time, rows and columns, torch.compile, TF32 products."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))


class AxisAttention(nn.Module):
    def __init__(self, dim, heads, axis):
        super().__init__()
        self.axis, self.heads = axis, heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.norm(x).movedim(self.axis, 3)  # the attended axis just before channels
        b, m, n, s, d = h.shape
        qkv = self.qkv(h).view(b * m * n, s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        out = out.transpose(1, 2).reshape(b, m, n, s, d)
        return x + self.proj(out).movedim(3, self.axis)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.axes = nn.Sequential(*[AxisAttention(dim, heads, axis) for axis in (1, 2, 3)])
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = self.axes(x)
        return x + self.mlp(self.norm(x))


class Nowcaster(nn.Module):
    def __init__(self, frames, side, patch, dim, depth, heads, bins=24):
        super().__init__()
        grid = side // patch
        self.patch, self.bins = patch, bins
        self.embed = nn.Conv2d(2, dim, patch, patch)
        self.t_pos = nn.Parameter(torch.randn(frames, 1, 1, dim) * 0.02)
        self.s_pos = nn.Parameter(torch.randn(1, grid, grid, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, bins * 4)

    def forward(self, radar):
        b, t = radar.shape[:2]
        x = self.embed(radar.flatten(0, 1)).unflatten(0, (b, t)).permute(0, 1, 3, 4, 2)
        x = self.norm(self.layers(x + self.t_pos + self.s_pos))
        out = self.head(x.mean(1)).permute(0, 3, 1, 2)
        return F.pixel_shuffle(out, 2)  # bins at half of the patch


def radar_batch(args):
    shape = (args.batch, args.frames, 2, args.side, args.side)
    cells = args.side // args.patch * 2
    radar = torch.randn(shape, device="cuda").clamp_(-3, 3)
    return radar, torch.randint(0, 24, (args.batch, cells, cells), device="cuda")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Nowcaster(args.frames, args.side, args.patch, args.dim, args.depth, heads=8).cuda()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    compiled = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02, fused=True)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=50)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3000)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cosine], milestones=[50])
    weight = torch.linspace(0.5, 3.0, 24, device="cuda")  # big hail is rare

    for step in range(STEPS):
        radar, bins = radar_batch(args)
        logits = compiled(radar)
        loss = F.cross_entropy(logits, bins, weight=weight)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 2 == 0:
            print(f"step {step} loss {loss.item():.4f} gnorm {norm.item():.2f}")


if __name__ == "__main__":
    main()
