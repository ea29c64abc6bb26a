"""Stamps in one step: consistency distillation from a frozen diffusion teacher, a student and its EMA target, pseudo-Huber loss, bf16 autocast, RAdam."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(16, i), nn.Conv2d(i, o, 3, padding=1)
        self.time = nn.Linear(t, 2 * o)
        self.n2, self.c2 = nn.GroupNorm(16, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.time(t)[..., None, None].chunk(2, 1)
        h = self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
        return self.skip(x) + h


class Net(nn.Module):
    """U-Net with one residual block going down and two going up, wrapped as c_skip x + c_out F."""

    def __init__(self, base=64, mults=(1, 2, 4), sigma_data=0.5):
        super().__init__()
        t = base * 4
        self.sd, self.base = sigma_data, base
        self.embed = nn.Sequential(nn.Linear(base, t), nn.SiLU(), nn.Linear(t, t))
        self.first = nn.Conv2d(3, base, 3, padding=1)
        widths = [base * m for m in mults]
        self.down = nn.ModuleList([Res(a, b, t) for a, b in zip([base] + widths[:-1], widths)])
        self.mid = Res(widths[-1], widths[-1], t)
        self.up = nn.ModuleList()
        c = widths[-1]
        for w in reversed(widths):
            self.up.append(nn.ModuleList([Res(c + w, w, t), Res(w, w, t)]))
            c = w
        self.last = nn.Sequential(
            nn.GroupNorm(16, base), nn.SiLU(), nn.Conv2d(base, 3, 3, padding=1)
        )

    def forward(self, x, sigma):
        s = sigma.view(-1, 1, 1, 1)
        c_skip = self.sd**2 / (s**2 + self.sd**2)
        c_out = s * self.sd / (s**2 + self.sd**2).sqrt()
        freq = torch.exp(
            -math.log(1e4) * torch.arange(self.base // 2, device=x.device) / (self.base // 2)
        )
        angle = 0.25 * sigma.log()[:, None] * freq
        t = self.embed(torch.cat([angle.sin(), angle.cos()], -1))
        h = self.first(x / (s**2 + self.sd**2).sqrt())
        kept = []
        for i, block in enumerate(self.down):
            h = block(h, t)
            kept.append(h)
            if i + 1 < len(self.down):
                h = F.avg_pool2d(h, 2)
        h = self.mid(h, t)
        for i, (a, b) in enumerate(self.up):
            if i:
                h = F.interpolate(h, scale_factor=2)
            h = b(a(torch.cat([h, kept.pop()], 1), t), t)
        return c_skip * x + c_out * self.last(h).float()


def karras(n, low=0.002, high=80.0, rho=7):
    i = torch.linspace(0, 1, n, device="cuda")
    return (low ** (1 / rho) + i * (high ** (1 / rho) - low ** (1 / rho))) ** rho


teacher = Net().cuda().requires_grad_(False).eval()
student = copy.deepcopy(teacher).requires_grad_(True).train()
target = copy.deepcopy(teacher)
optimizer = torch.optim.RAdam(student.parameters(), lr=4e-4)
sigmas = karras(18)

for step in range(5):
    x0 = torch.rand(64, 3, 64, 64, device="cuda") * 2 - 1
    n = torch.randint(0, 17, (64,), device="cuda")
    low, high = sigmas[n], sigmas[n + 1]
    x = x0 + high.view(-1, 1, 1, 1) * torch.randn_like(x0)
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            slope = (x - teacher(x, high)) / high.view(-1, 1, 1, 1)
            euler = x + (low - high).view(-1, 1, 1, 1) * slope
            slope2 = (euler - teacher(euler, low)) / low.view(-1, 1, 1, 1)
            heun = x + 0.5 * (low - high).view(-1, 1, 1, 1) * (slope + slope2)
            wanted = target(heun, low)
        given = student(x, high)
    c = 0.00054 * math.sqrt(x0[0].numel())
    loss = (((given - wanted).square().flatten(1).sum(1) + c**2).sqrt() - c).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(student.parameters()), 0.05)
    print(step, loss.item())
