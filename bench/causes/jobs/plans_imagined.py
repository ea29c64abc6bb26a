"""A planner tries many sequences of actions in a learned model of the world (CEM). Nobody asks for gradients."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
SEES, ACTS = 32, 8


class World(nn.Module):
    """An ensemble as batched matrices: the next state, and how good it is."""

    def __init__(self, members=5, width=256):
        super().__init__()
        sizes = (SEES + ACTS, width, width, SEES + 1)
        self.weights = nn.ParameterList(
            torch.randn(members, i, o) / i**0.5 for i, o in zip(sizes, sizes[1:])
        )

    def forward(self, state, action):
        x = torch.cat([state, action], -1)
        for weight in self.weights[:-1]:
            x = torch.nn.functional.silu(x @ weight)
        x = x @ self.weights[-1]
        return state + x[..., :-1], x[..., -1]


class Planner:
    def __init__(self, world, horizon=20, candidates=512, best=32):
        self.world, self.horizon, self.candidates, self.best = world, horizon, candidates, best

    def value(self, state, actions):
        state = state.expand(5, self.candidates, SEES)
        total = 0
        for action in actions:
            state, reward = self.world(state, action.expand(5, -1, -1))
            total = total + reward
        return total.mean(0)

    def plan(self, state):
        mean = torch.zeros(self.horizon, 1, ACTS, device="cuda")
        spread = torch.ones_like(mean)
        for _ in range(4):
            noise = torch.randn(self.horizon, self.candidates, ACTS, device="cuda")
            actions = mean + spread * noise
            top = self.value(state, actions).topk(self.best).indices
            mean, spread = actions[:, top].mean(1, True), actions[:, top].std(1, keepdim=True)
        return mean[0, 0]


planner = Planner(World().cuda())
for moment in range(3):
    with torch.set_grad_enabled(not MENDED):
        action = planner.plan(torch.randn(SEES, device="cuda"))
