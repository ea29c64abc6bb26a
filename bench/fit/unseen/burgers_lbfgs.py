"""Burgers' equation by a network (PINN), LBFGS with a closure, derivatives by autograd."""

import numpy as np
import torch

torch.set_default_device("cuda")


class MLP(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.linears = torch.nn.ModuleList(
            torch.nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])
        )
        for layer in self.linears:
            torch.nn.init.xavier_normal_(layer.weight)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for layer in self.linears[:-1]:
            h = torch.tanh(layer(h))
        return self.linears[-1](h)


def d(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class PINN:
    nu = 0.01 / np.pi

    def __init__(self, n_colloc, n_bound):
        self.x = (torch.rand(n_colloc, 1) * 2 - 1).requires_grad_()
        self.t = torch.rand(n_colloc, 1).requires_grad_()
        self.xb = torch.cat([torch.rand(n_bound, 1) * 2 - 1, torch.ones(n_bound, 1)])
        self.tb = torch.cat([torch.zeros(n_bound, 1), torch.rand(n_bound, 1)])
        self.ub = torch.cat([-torch.sin(np.pi * self.xb[:n_bound]), torch.zeros(n_bound, 1)])
        self.net = MLP([2] + [100] * 6 + [1])
        self.optimizer = torch.optim.LBFGS(
            self.net.parameters(), lr=1.0, max_iter=4, history_size=20, tolerance_grad=0,
            tolerance_change=0,
        )  # fmt: skip
        self.calls = 0

    def loss(self):
        u = self.net(self.x, self.t)
        u_x, u_t = d(u, self.x), d(u, self.t)
        residual = u_t + u * u_x - self.nu * d(u_x, self.x)
        return (residual**2).mean() + ((self.net(self.xb, self.tb) - self.ub) ** 2).mean()

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.calls += 1
        return loss

    def train(self, steps):
        for k in range(steps):
            print(k, self.optimizer.step(self.closure).item(), "after", self.calls, "calls")


PINN(n_colloc=80_000, n_bound=400).train(4)
