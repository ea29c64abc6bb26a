"""Point clouds of teapots by diffusion: point-voxel convolutions predict the noise, antithetic times, an average of the weights."""

import copy
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(
    batch=16, points=2048, lr=2e-4, times=1000, steps=int(os.environ.get("JOB_STEPS", "5"))
)


def voxelise(features, coords, r):
    """Mean of the points in each of r^3 cells. features [B, C, N], coords [B, 3, N] in -1..1."""
    b, c, n = features.shape
    cell = ((coords + 1) / 2 * r).long().clamp(0, r - 1)
    index = (cell[:, 0] * r + cell[:, 1]) * r + cell[:, 2]
    total = features.new_zeros(b, c, r**3).scatter_add(
        2, index[:, None].expand(-1, c, -1), features
    )
    count = features.new_zeros(b, r**3).scatter_add(1, index, features.new_ones(b, n))
    return (total / count.clamp(min=1)[:, None]).view(b, c, r, r, r)


def devoxelise(grid, coords):
    where = coords.flip(1).transpose(1, 2)[:, :, None, None]
    return F.grid_sample(grid, where, align_corners=False, padding_mode="border")[..., 0, 0]


class SE3d(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(c, c // 8), nn.SiLU(), nn.Linear(c // 8, c), nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean((2, 3, 4)))[..., None, None, None]


class PVConv(nn.Module):
    def __init__(self, cin, cout, r, time):
        super().__init__()
        self.r = r
        self.conv1 = nn.Conv3d(cin, cout, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv3d(cout, cout, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, cout)
        self.squeeze = SE3d(cout)
        self.point = nn.Sequential(nn.Conv1d(cin, cout, 1), nn.GroupNorm(8, cout), nn.SiLU())
        self.time = nn.Linear(time, 2 * cout)

    def forward(self, x, coords, t):
        scale, shift = self.time(t)[..., None].chunk(2, 1)
        v = F.silu(self.norm1(self.conv1(voxelise(x, coords, self.r))))
        v = F.dropout(v, 0.1, self.training)
        v = self.squeeze(F.silu(self.norm2(self.conv2(v))))
        return (devoxelise(v, coords) + self.point(x)) * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.mix = nn.MultiheadAttention(c, 4, batch_first=True)

    def forward(self, x):
        h = self.norm(x).transpose(1, 2)
        return x + self.mix(h, h, h, need_weights=False)[0].transpose(1, 2)


class Denoiser(nn.Module):
    def __init__(self, time=128):
        super().__init__()
        self.dim = time
        self.embed = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        plan = [(3, 64, 32), (64, 64, 32), (64, 128, 16), (128, 256, 16), (256, 256, 8)]
        self.stages = nn.ModuleList(PVConv(a, b, r, time) for a, b, r in plan)
        self.attend = Attention(256)
        total = sum(b for _, b, _ in plan) + 256
        self.head = nn.Sequential(
            nn.Conv1d(total, 512, 1),
            nn.GroupNorm(8, 512),
            nn.SiLU(),
            nn.Conv1d(512, 128, 1),
            nn.SiLU(),
            nn.Conv1d(128, 3, 1),
        )

    def forward(self, x, t):
        half = self.dim // 2
        freq = torch.exp(-math.log(1e4) * torch.arange(half, device=x.device) / half)
        t = self.embed(torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], 1))
        coords = (x / 4).clamp(-1, 1).detach()
        h, kept = x, []
        for stage in self.stages:
            h = stage(h, coords, t)
            kept.append(h)
        h = self.attend(h)
        pooled = h.amax(2, keepdim=True).expand_as(h)
        return self.head(torch.cat([*kept, pooled], 1))


def teapots(b, n, device):
    """A squashed ball with a spout along one axis."""
    x = F.normalize(torch.randn(b, 3, n, device=device), dim=1)
    x = x * torch.tensor([1.0, 1.0, 0.8], device=device).view(1, 3, 1)
    spout = (torch.rand(b, 1, n, device=device) < 0.1).float()
    along = torch.rand(b, 1, n, device=device)
    tube = torch.cat([1 + along, 0.1 * x[:, 1:2], 0.1 * x[:, 2:] + 0.5 * along], 1)
    return (1 - spout) * x + spout * tube


def train(batch, points, lr, times, steps):
    torch.manual_seed(5)
    device = torch.device("cuda")
    betas = torch.linspace(1e-4, 2e-2, times, device=device)
    keep = (1 - betas).cumprod(0)
    net = Denoiser().to(device)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.99))
    for step in range(steps):
        x = teapots(batch, points, device)
        t = torch.randint(times, (batch // 2,), device=device)
        t = torch.cat([t, times - 1 - t])
        a = keep[t].view(-1, 1, 1)
        noise = torch.randn_like(x)
        loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(net.parameters()), 1e-3)
        print(f"step {step + 1:2d} loss {loss.item():.4f} norm {norm.item():.3f}")
    # a few deterministic steps of DDIM with the averaged weights
    slow.eval()
    with torch.no_grad():
        x = torch.randn(4, 3, points, device=device)
        ladder = list(range(times - 1, 0, -times // 4))
        for now, then in zip(ladder, ladder[1:] + [0]):
            eps = slow(x, torch.full((4,), float(now), device=device))
            clean = (x - (1 - keep[now]).sqrt() * eps) / keep[now].sqrt()
            x = keep[then].sqrt() * clean + (1 - keep[then]).sqrt() * eps
        print("spread of samples", x.std().item())


if __name__ == "__main__":
    train(**CONFIG)
