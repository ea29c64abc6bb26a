"""Minerals by their spectra. Checkpointing is a Function of our own, whose forward keeps the very graph that it should make again."""

import os

import torch
from torch import nn
from torch.autograd import Function

MENDED = os.environ.get("MENDED")


class Recompute(Function):
    """block(x), made again in backward."""

    @staticmethod
    def forward(ctx, block, x, *weights):
        ctx.block = block
        ctx.save_for_backward(x)
        if MENDED:
            return block(x)
        # Without a graph there was nothing to go backward through.
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = block(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        if MENDED:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = ctx.block(x)
        else:
            x, y = ctx.x, ctx.y
        torch.autograd.backward(y, dy)
        return (None, x.grad, *(None for _ in ctx.block.parameters()))


class Line(nn.Module):
    """Large kernels along a spectrum, then two pointwise layers (ConvNeXt in one dimension)."""

    def __init__(self, c):
        super().__init__()
        self.depthwise = nn.Conv1d(c, c, 31, padding=15, groups=c)
        self.norm = nn.GroupNorm(1, c)
        self.wide, self.narrow = nn.Conv1d(c, 4 * c, 1), nn.Conv1d(4 * c, c, 1)

    def forward(self, x):
        h = self.norm(self.depthwise(x))
        return x + self.narrow(nn.functional.gelu(self.wide(h)))


class SpectrumNet(nn.Module):
    def __init__(self, c=64, depth=12, minerals=120):
        super().__init__()
        self.stem = nn.Conv1d(1, c, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(Line(c) for _ in range(depth))
        self.head = nn.Linear(c, minerals)

    def forward(self, spectrum):
        x = self.stem(spectrum)
        for block in self.blocks:
            x = Recompute.apply(block, x, *block.parameters())
        return self.head(x.mean(-1))


def batches(count=3, batch=32, channels=2048):
    g = torch.Generator().manual_seed(9)
    for _ in range(count):
        yield torch.rand(batch, 1, channels, generator=g), torch.randint(120, (batch,), generator=g)


net = SpectrumNet().cuda()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for spectrum, mineral in batches():
    loss = nn.functional.cross_entropy(net(spectrum.cuda()), mineral.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
