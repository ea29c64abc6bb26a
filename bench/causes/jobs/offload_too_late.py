"""What autograd keeps is meant to go to the CPU, but only the loss is in the context."""

import os

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

MENDED = os.environ.get("MENDED")


class Fourier(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self, c=32, modes=12):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c, c, modes, modes, dtype=torch.cfloat) / c)
        self.local, self.modes = nn.Conv2d(c, c, 1), modes

    def forward(self, x):
        m = self.modes
        low = torch.fft.rfft2(x)
        out = torch.zeros_like(low)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", low[..., :m, :m], self.weight)
        return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


operator = nn.Sequential(nn.Conv2d(3, 32, 1), *[Fourier() for _ in range(10)], nn.Conv2d(32, 1, 1))
operator.cuda()
optimizer = torch.optim.Adam(operator.parameters())
for step in range(3):
    flow = torch.randn(8, 3, 256, 256, device="cuda")
    later = torch.randn(8, 1, 256, 256, device="cuda")
    if MENDED:
        with save_on_cpu():
            loss = (operator(flow) - later).square().mean()
    else:
        foretold = operator(flow)
        with save_on_cpu():
            loss = (foretold - later).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
