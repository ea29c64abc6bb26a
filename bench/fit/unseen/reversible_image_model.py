"""A reversible network by a custom autograd function, beside a memory-saving Swish of the same kind."""

import torch
from torch import nn


class SwishFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


class Swish(nn.Module):
    def forward(self, x):
        return SwishFn.apply(x)


class ReversibleFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, *params):
        with torch.no_grad():
            a, b = x.chunk(2, 1)
            for f, g in blocks:
                a = a + f(b)
                b = b + g(a)
        ctx.blocks = blocks
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], 1)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        da, db = grad.chunk(2, 1)
        sums = {}
        for f, g in reversed(ctx.blocks):
            with torch.enable_grad():
                a_in = a.detach().requires_grad_()
                gy = g(a_in)
            ga, *gp = torch.autograd.grad(gy, [a_in, *g.parameters()], db)
            sums.update(zip(g.parameters(), gp))
            da = da + ga
            b = b - gy.detach()
            with torch.enable_grad():
                b_in = b.detach().requires_grad_()
                fy = f(b_in)
            gb, *fp = torch.autograd.grad(fy, [b_in, *f.parameters()], da)
            sums.update(zip(f.parameters(), fp))
            db = db + gb
            a = a - fy.detach()
        flat = [sums[p] for pair in ctx.blocks for m in pair for p in m.parameters()]
        return torch.cat([da, db], 1), None, *flat


def branch(c):
    return nn.Sequential(
        nn.GroupNorm(8, c), Swish(), nn.Conv2d(c, 2 * c, 3, padding=1),
        nn.GroupNorm(8, 2 * c), Swish(), nn.Conv2d(2 * c, c, 3, padding=1),
    )  # fmt: skip


class Stage(nn.Module):
    def __init__(self, c, depth):
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.ModuleList([branch(c // 2), branch(c // 2)]) for _ in range(depth)
        )

    def forward(self, x):
        return ReversibleFn.apply(x, [tuple(p) for p in self.pairs], *self.pairs.parameters())


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 96, 7, 2, 3), Swish(), Stage(96, 4),
            nn.Conv2d(96, 192, 2, 2), Swish(), Stage(192, 6),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 100),
        )  # fmt: skip


net = Net().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for i in range(5):
    x, y = torch.randn(40, 3, 160, 160, device="cuda"), torch.randint(0, 100, (40,), device="cuda")
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    print(f"[{i}] {loss.item():.3f}")
