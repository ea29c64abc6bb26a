"""A wide network for prices learns with gradients of low rank, as GaLore does. Their directions come from a whole decomposition of each gradient."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=64)
parser.add_argument("--every", type=int, default=50)
parser.add_argument("--wide", type=int, default=5120)
parser.add_argument("--sketch", action="store_true", default=bool(os.environ.get("MENDED")))
args = parser.parse_args()


class Projector:
    """Directions of a gradient, renewed now and then."""

    def __init__(self, rank, every, sketch):
        self.rank, self.every, self.sketch, self.basis, self.calls = rank, every, sketch, None, 0

    def renew(self, gradient):
        if self.sketch:
            self.basis = torch.svd_lowrank(gradient, self.rank, niter=1)[0]
        else:
            u, _, _ = torch.linalg.svd(gradient, full_matrices=False)
            self.basis = u[:, : self.rank].clone()

    def down(self, gradient):
        if self.calls % self.every == 0:
            self.renew(gradient)
        self.calls += 1
        return self.basis.T @ gradient

    def up(self, small):
        return self.basis @ small


class GaLore(torch.optim.Optimizer):
    """Momentum in a small space."""

    def __init__(self, params, lr=1e-3, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                state, g = self.state[w], w.grad
                if w.ndim == 2 and min(w.shape) > args.rank:
                    if not state:
                        state["projector"] = Projector(args.rank, args.every, args.sketch)
                    g = state["projector"].down(g)
                mean = state.setdefault("mean", torch.zeros_like(g))
                mean.mul_(group["momentum"]).add_(g)
                projector = state.get("projector")
                w.add_(projector.up(mean) if projector else mean, alpha=-group["lr"])


model = nn.Sequential(
    nn.Linear(40, args.wide),
    nn.SiLU(),
    nn.Linear(args.wide, args.wide),
    nn.SiLU(),
    nn.Linear(args.wide, 1),
).cuda()
optimizer = GaLore(model.parameters())
for step in range(4):
    x, price = torch.randn(128, 40, device="cuda"), torch.rand(128, 1, device="cuda")
    loss = nn.functional.mse_loss(model(x), price)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
