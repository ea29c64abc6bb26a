"""Learning to learn: an LSTM is the optimizer of many small problems. Windows of five steps end nowhere: state and graph go on."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
PROBLEMS, SIZE, HIDDEN, WINDOW, STEPS = 3000, 10, 20, 5, 40


class LearnedOptimizer(nn.Module):
    """Says for each coordinate how far to go, from its gradient and what it remembers."""

    def __init__(self, scale=0.1):
        super().__init__()
        self.first, self.second = nn.LSTMCell(2, HIDDEN), nn.LSTMCell(HIDDEN, HIDDEN)
        self.out, self.scale = nn.Linear(HIDDEN, 1), scale

    def start(self, coordinates, device):
        zeros = torch.zeros(coordinates, HIDDEN, device=device)
        return (zeros, zeros), (zeros, zeros)

    def forward(self, gradient, state):
        size = (gradient.abs() + 1e-8).log() / 10
        seen = torch.stack([size.clamp(-1, 1), gradient.sign()], -1)
        first = self.first(seen, state[0])
        second = self.second(first[0], state[1])
        return self.scale * self.out(second[0]).squeeze(-1), (first, second)


class Quadratics:
    """|W x - y|² for many W and y at once."""

    def __init__(self, device):
        self.w = torch.randn(PROBLEMS, SIZE, SIZE, device=device)
        self.y = torch.randn(PROBLEMS, SIZE, 1, device=device)

    def loss(self, x):
        return (self.w @ x.view(PROBLEMS, SIZE, 1) - self.y).square().sum((1, 2)).mean()

    def gradient(self, x):
        """Without a graph, as in the paper: second derivatives are left out."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.loss(x) * PROBLEMS, x)[0]


def detached(state):
    return tuple(tuple(t.detach() for t in pair) for pair in state)


def episode(learner, meta, device="cuda"):
    """One set of problems; what the windows say is gathered into one step."""
    problems = Quadratics(device)
    x = torch.randn(PROBLEMS * SIZE, device=device)
    state = learner.start(len(x), device)
    meta.zero_grad()
    last = None
    for _ in range(0, STEPS, WINDOW):
        total = 0
        for _ in range(WINDOW):
            move, state = learner(problems.gradient(x), state)
            x = x + move
            total = total + problems.loss(x)
        if MENDED:
            total.backward()
            x, state = x.detach(), detached(state)
        else:
            total.backward(retain_graph=True)
        last = total.item() / WINDOW
    nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
    meta.step()
    return last


learner = LearnedOptimizer().cuda()
meta = torch.optim.Adam(learner.parameters(), lr=3e-3)
for number in range(3):
    print(number, episode(learner, meta))
