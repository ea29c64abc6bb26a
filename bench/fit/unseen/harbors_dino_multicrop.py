"""Harbours without labels by DINO: two large and six small crops, a teacher by EMA, centring, weight decay on a schedule, last layer frozen at first."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.scale = heads, (d // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.drop = drop

    def path(self, y):
        if not self.training or self.drop == 0:
            return y
        keep = torch.rand(len(y), 1, 1, device=y.device) >= self.drop
        return y * keep / (1 - self.drop)

    def forward(self, x):
        x = x + self.path(self.attn(self.n1(x)))
        return x + self.path(self.mlp(self.n2(x)))


class ViT(nn.Module):
    def __init__(self, d=256, depth=10, heads=4, patch=16, side=192, drop=0.1):
        super().__init__()
        self.grid = side // patch
        self.patch = nn.Conv2d(3, d, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, self.grid**2 + 1, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads, drop * i / depth) for i in range(depth))
        self.norm = nn.LayerNorm(d)

    def places(self, side):
        if side == self.grid:
            return self.pos
        first, rest = self.pos[:, :1], self.pos[:, 1:]
        rest = rest.transpose(1, 2).unflatten(2, (self.grid, self.grid))
        rest = F.interpolate(rest, size=(side, side), mode="bicubic", align_corners=False)
        return torch.cat([first, rest.flatten(2).transpose(1, 2)], 1)

    def forward(self, x):
        x = self.patch(x)
        side = x.shape[-1]
        x = torch.cat([self.cls.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        x = x + self.places(side)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


class Head(nn.Module):
    def __init__(self, d, out=32_768, hidden=1024, neck=256):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(d, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, neck),
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(neck, out, bias=False))

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = ViT(), Head(256)

    def forward(self, crops):
        sizes = [c.shape[-1] for c in crops]
        groups, start = [], 0
        for end in range(1, len(crops) + 1):
            if end == len(crops) or sizes[end] != sizes[start]:
                groups.append(self.trunk(torch.cat(crops[start:end])))
                start = end
        return self.head(torch.cat(groups))


def dino_loss(student, teacher, centre, crops, t_student=0.1, t_teacher=0.04):
    s = (student / t_student).chunk(crops)
    t = ((teacher - centre) / t_teacher).softmax(-1).detach().chunk(2)
    total, terms = 0.0, 0
    for i, p in enumerate(t):
        for j, q in enumerate(s):
            if i != j:
                total = total - (p * q.log_softmax(-1)).sum(-1).mean()
                terms += 1
    return total / terms


student = Network().cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
centre = torch.zeros(1, 32_768, device="cuda")
matrices = [p for p in student.parameters() if p.ndim > 1]
vectors = [p for p in student.parameters() if p.ndim <= 1]
opt = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=5e-4)
STEPS, BATCH = 5, 40

for it in range(STEPS):
    cos = 0.5 * (1 + math.cos(math.pi * it / STEPS))
    opt.param_groups[0]["weight_decay"] = 0.4 - 0.36 * cos
    momentum = 1 - 0.004 * cos
    large = [torch.randn(BATCH, 3, 192, 192, device="cuda") for _ in range(2)]
    small = [torch.randn(BATCH, 3, 96, 96, device="cuda") for _ in range(6)]
    with torch.no_grad():
        t_out = teacher(large)
    s_out = student(large + small)
    loss = dino_loss(s_out, t_out, centre, 8)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 3.0)
    if it < 2:
        for p in student.head.last.parameters():
            p.grad = None
    opt.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.mul_(momentum).add_(s, alpha=1 - momentum)
        centre.lerp_(t_out.mean(0, keepdim=True), 0.1)
    print(it, loss.item())
