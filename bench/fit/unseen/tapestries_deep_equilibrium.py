"""Tapestries by a deep equilibrium network: a fixed point found by Anderson acceleration without a graph, the gradient found by a second solve in a hook, weight-normed cell, AdamW."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def anderson(f, x0, memory=5, rounds=14, lam=1e-4, beta=1.0):
    """Fixed point of f; x0 (B, C, H, W). Keeps `memory` iterates and their images."""
    b, n = len(x0), x0[0].numel()
    xs = x0.new_zeros(b, memory, n)
    fs = x0.new_zeros(b, memory, n)
    xs[:, 0], fs[:, 0] = x0.flatten(1), f(x0).flatten(1)
    xs[:, 1], fs[:, 1] = fs[:, 0], f(fs[:, 0].view_as(x0)).flatten(1)
    system = x0.new_zeros(b, memory + 1, memory + 1)
    system[:, 0, 1:] = system[:, 1:, 0] = 1
    right = x0.new_zeros(b, memory + 1, 1)
    right[:, 0] = 1
    for k in range(2, rounds):
        m = min(k, memory)
        gap = fs[:, :m] - xs[:, :m]
        eye = torch.eye(m, device=x0.device)
        system[:, 1 : m + 1, 1 : m + 1] = torch.bmm(gap, gap.transpose(1, 2)) + lam * eye
        alpha = torch.linalg.solve(system[:, : m + 1, : m + 1], right[:, : m + 1])[:, 1:, 0]
        new = (
            beta * (alpha[:, None] @ fs[:, :m])[:, 0]
            + (1 - beta) * (alpha[:, None] @ xs[:, :m])[:, 0]
        )
        xs[:, k % memory] = new
        fs[:, k % memory] = f(new.view_as(x0)).flatten(1)
    return fs[:, (rounds - 1) % memory].view_as(x0)


class Cell(nn.Module):
    def __init__(self, c, inner):
        super().__init__()
        self.c1 = weight_norm(nn.Conv2d(c, inner, 3, padding=1, bias=False))
        self.c2 = weight_norm(nn.Conv2d(inner, c, 3, padding=1, bias=False))
        self.n1, self.n2, self.n3 = nn.GroupNorm(8, inner), nn.GroupNorm(8, c), nn.GroupNorm(8, c)

    def forward(self, z, x):
        y = self.n1(F.relu(self.c1(z)))
        return self.n3(F.relu(z + self.n2(x + self.c2(y))))


class Equilibrium(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        with torch.no_grad():
            z = anderson(lambda z: self.cell(z, x), torch.zeros_like(x))
        z = self.cell(z, x)
        if not self.training:
            return z
        z0 = z.detach().requires_grad_()
        f0 = self.cell(z0, x)

        def implicit(grad):
            def pull(g):
                return torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad

            return anderson(pull, grad, rounds=10)

        z.register_hook(implicit)
        return z


class Tapestry(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64))
        self.deq = Equilibrium(Cell(64, 96))
        self.head = nn.Sequential(
            nn.BatchNorm2d(64), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, kinds)
        )

    def forward(self, x):
        return self.head(self.deq(self.stem(x)))


net = Tapestry(18).cuda().train()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
for step in range(4):
    woven = torch.rand(144, 3, 96, 96, device="cuda")
    kind = torch.randint(18, (144,), device="cuda")
    loss = F.cross_entropy(net(woven), kind)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step}, loss {loss.item():.3f}")
