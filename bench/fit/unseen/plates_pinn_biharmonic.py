"""How clamped plates bend: a physics-informed network with torch.func (nested Hessians for the biharmonic operator), hard boundary terms, Fourier features, AdamW."""

import functools

import torch
from torch import nn
from torch.func import functional_call, hessian, vmap


class Deflection(nn.Module):
    def __init__(self, width=160, depth=4, features=64):
        super().__init__()
        self.register_buffer("freq", torch.randn(features, 2) * 2)
        layers = [nn.Linear(2 * features, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, xy):
        x, y = xy.unbind(-1)
        phase = xy @ self.freq.T
        w = self.net(torch.cat([phase.sin(), phase.cos()], -1)).squeeze(-1)
        return w * (x * (1 - x) * y * (1 - y)) ** 2  # clamped: w and its slope vanish on the rim


def laplacian(f):
    def apply(xy):
        return hessian(f)(xy).diagonal().sum()

    return apply


def residual(model, weights, load, points):
    w = functools.partial(functional_call, model, weights)
    bilaplace = vmap(laplacian(laplacian(lambda xy: w((xy,)))))
    return bilaplace(points) - load(points)


def load(points):
    """A crate in one corner and its own weight."""
    return 40.0 * torch.exp(-60 * (points - 0.3).square().sum(-1)) + 1.0


def main():
    torch.manual_seed(0)
    plate = Deflection().cuda()
    weights = dict(plate.named_parameters())
    state = {**weights, **dict(plate.named_buffers())}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, weight_decay=0.0)
    sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=0)
    for epoch in range(4):
        points = sobol.draw(10_000).cuda()
        r = residual(plate, state, load, points)
        loss = r.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(
            f"epoch {epoch}  residual {loss.item():.4e}  centre {plate(torch.full((2,), 0.5).cuda()).item():.3e}"
        )


if __name__ == "__main__":
    main()
