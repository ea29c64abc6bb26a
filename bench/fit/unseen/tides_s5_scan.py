"""Tides at harbours by S5: a complex diagonal recurrence as a parallel scan in an own autograd function, batch of two long series, AdamW."""

import torch
import torch.nn as nn


def scan(a, b, reverse=False):
    """x_t = a_t x_{t-1} + b_t along dim 1 by doubling; a, b: B x L x N."""
    if reverse:
        a, b = a.flip(1), b.flip(1)
    length, hop = a.shape[1], 1
    while hop < length:
        b = torch.cat([b[:, :hop], b[:, hop:] + a[:, hop:] * b[:, :-hop]], 1)
        a = torch.cat([a[:, :hop], a[:, hop:] * a[:, :-hop]], 1)
        hop *= 2
    return b.flip(1) if reverse else b


class Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        x = scan(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad):
        a, x = ctx.saved_tensors
        ahead = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1).conj()
        gb = scan(ahead, grad, reverse=True)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        return gb * before.conj(), gb


class S5(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.log_decay = nn.Parameter(torch.log(0.5 * torch.ones(state)))
        self.phase = nn.Parameter(torch.pi * torch.arange(state).float())
        self.log_dt = nn.Parameter(torch.rand(state) * 4.6 - 6.9)
        self.B = nn.Parameter(torch.randn(state, width, 2) / width**0.5)
        self.C = nn.Parameter(torch.randn(width, state, 2) / state**0.5)
        self.D = nn.Parameter(torch.ones(width))

    def forward(self, u, gap):
        eigen = torch.complex(-self.log_decay.exp(), self.phase)
        step = gap[..., None] * self.log_dt.exp()
        a = torch.exp(step * eigen)
        driven = u.to(torch.cfloat) @ torch.view_as_complex(self.B).T
        x = Recurrence.apply(a, driven * step)
        return 2 * (x @ torch.view_as_complex(self.C).T).real + self.D * u


class Block(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.norm, self.ssm = nn.LayerNorm(width), S5(width, state)
        self.gate, self.drop = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, u, gap):
        y = nn.functional.gelu(self.ssm(self.norm(u), gap))
        return u + self.drop(y * torch.sigmoid(self.gate(y)))


class Tides(nn.Module):
    def __init__(self, stations=24, width=256, state=256, depth=6):
        super().__init__()
        self.enter, self.leave = nn.Linear(stations, width), nn.Linear(width, stations)
        self.blocks = nn.ModuleList([Block(width, state) for _ in range(depth)])

    def forward(self, series, gap):
        u = self.enter(series)
        for block in self.blocks:
            u = block(u, gap)
        return self.leave(u)


def main():
    torch.manual_seed(4)
    net = Tides().to("cuda")
    ssm = [p for n, p in net.named_parameters() if ".ssm." in n]
    other = [p for n, p in net.named_parameters() if ".ssm." not in n]
    opt = torch.optim.AdamW(
        [dict(params=ssm, lr=1e-3, weight_decay=0.0), dict(params=other, lr=4e-3)]
    )
    for week in range(5):
        series = torch.randn(2, 16385, 24, device="cuda")
        gap = torch.rand(2, 16384, device="cuda") + 0.5
        predicted = net(series[:, :-1], gap)
        loss = (predicted - series[:, 1:]).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(week, loss.item())


main()
