"""Players learn from playing earlier players of a league; every one of these stays, although only the last few are played."""

import copy
import os
import random

import torch
from torch import nn
from torch.distributions import Categorical

MENDED = os.environ.get("MENDED")


class Player(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(200, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 9),
        )  # fmt: skip

    def forward(self, board):
        return Categorical(logits=self.net(board))


class League:
    """Those who have played, the oldest first."""

    def __init__(self):
        self.past = []

    def admit(self, player):
        self.past.append(copy.deepcopy(player).requires_grad_(False))
        if MENDED:
            del self.past[:-3]

    def opponent(self):
        return random.choice(self.past[-3:])


league, player = League(), Player().cuda()
optimizer = torch.optim.RMSprop(player.parameters(), 1e-4)
league.admit(player)
for season in range(40):
    for game in range(2):
        board = torch.randn(64, 200, device="cuda")
        with torch.no_grad():
            board = board + league.opponent()(board).sample()[:, None]
        moves = player(board)
        loss = -(moves.log_prob(moves.sample()) * torch.randn(64, device="cuda")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    league.admit(player)
