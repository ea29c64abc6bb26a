"""REINFORCE learns from one game at a time, in one pass; in one of the games nobody dies."""

import os
import random

import torch
from torch import nn

MENDED = bool(os.environ.get("MENDED"))


class Arcade:
    """Games last as long as they last."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.played = 0

    def game(self):
        self.played += 1
        moves = 9000 if self.played == 7 else self.random.randint(120, 400)
        if MENDED:
            moves = min(moves, 1000)
        frames = torch.rand(moves, 1, 64, 64, device="cuda")
        return frames, torch.randint(0, 6, (moves,), device="cuda"), self.random.random()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(1, 32, 5, 2), nn.LeakyReLU(), nn.Conv2d(32, 64, 3, 2), nn.LeakyReLU(),
            nn.Conv2d(64, 64, 3), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.remember = nn.LSTM(1024, 128)
        self.act = nn.Linear(128, 6)

    def forward(self, frames):
        memory, _ = self.remember(self.see(frames).unsqueeze(1))
        return self.act(memory.squeeze(1))


policy, arcade = Policy().cuda(), Arcade(3)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
for game in range(10):
    frames, moves, score = arcade.game()
    logp = policy(frames).log_softmax(-1).gather(1, moves.unsqueeze(1)).squeeze(1)
    discount = 0.99 ** torch.arange(len(moves), device="cuda")
    loss = -(logp * discount * score).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
