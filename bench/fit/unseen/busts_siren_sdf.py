"""Busts as distances: one SIREN with a learned code for each bust, eikonal and normal terms (gradients of gradients), Adam with two rates, points made anew."""

import math
from types import SimpleNamespace

import torch
from torch import nn

cfg = SimpleNamespace(
    busts=64, code=256, width=512, layers=6, omega=30.0, points=24000, per_step=4, steps=5
)


class Sine(nn.Module):
    def __init__(self, fan_in, fan_out, first=False):
        super().__init__()
        self.linear = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if first else math.sqrt(6 / fan_in) / cfg.omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(cfg.omega * self.linear(x))


class SDF(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(cfg.busts, cfg.code, max_norm=1.0)
        nn.init.normal_(self.codes.weight, std=0.01)
        dims = [cfg.code + 3] + [cfg.width] * cfg.layers
        self.body = nn.Sequential(
            *[Sine(a, b, first=i == 0) for i, (a, b) in enumerate(zip(dims, dims[1:]))]
        )
        self.head = nn.Linear(cfg.width, 1)

    def forward(self, xyz, which):
        code = self.codes(which)[:, None].expand(-1, xyz.shape[1], -1)
        return self.head(self.body(torch.cat([xyz, code], -1))).squeeze(-1), code


def sample(generator):
    """Points on bumpy spheres with their normals, and points anywhere in the box."""
    which = torch.randint(0, cfg.busts, (cfg.per_step,), generator=generator)
    normal = torch.randn(cfg.per_step, cfg.points // 2, 3, generator=generator)
    normal = normal / normal.norm(dim=-1, keepdim=True)
    surface = normal * (0.5 + 0.05 * torch.sin(8 * normal.sum(-1, keepdim=True)))
    free = torch.rand(cfg.per_step, cfg.points // 2, 3, generator=generator) * 2 - 1
    return [t.cuda() for t in (which, surface, normal, free)]


torch.manual_seed(12)
generator = torch.Generator().manual_seed(12)
net = SDF().cuda()
opt = torch.optim.Adam(
    [
        {"params": [*net.body.parameters(), *net.head.parameters()], "lr": 1e-4},
        {"params": net.codes.parameters(), "lr": 1e-3},
    ]
)
for step in range(cfg.steps):
    which, surface, normal, free = sample(generator)
    xyz = torch.cat([surface, free], 1).requires_grad_()
    distance, code = net(xyz, which)
    (grad,) = torch.autograd.grad(distance.sum(), xyz, create_graph=True)
    on, off = distance.split(cfg.points // 2, 1)
    terms = {
        "surface": 3e2 * on.abs().mean(),
        "empty": 1e1 * torch.exp(-50 * off.abs()).mean(),
        "normal": 1e1
        * (1 - nn.functional.cosine_similarity(grad[:, : cfg.points // 2], normal, dim=-1)).mean(),
        "eikonal": 5e0 * (grad.norm(dim=-1) - 1).abs().mean(),
        "code": 1e-2 * code.pow(2).mean(),
    }
    loss = sum(terms.values())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print(step, " ".join(f"{k}={v.item():.3g}" for k, v in terms.items()))
