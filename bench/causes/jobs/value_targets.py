"""Q-learning from frames; the target network's values are made with a graph."""

import copy

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, actions=18):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(12, 64, 8, 2), nn.ELU(), nn.Conv2d(64, 128, 4, 2), nn.ELU(),
            nn.Conv2d(128, 128, 3), nn.ELU(), nn.AdaptiveAvgPool2d(7), nn.Flatten(),
        )  # fmt: skip
        self.value, self.advantage = nn.Linear(6272, 1), nn.Linear(6272, actions)

    def forward(self, frames):
        x = self.trunk(frames)
        a = self.advantage(x)
        return self.value(x) + a - a.mean(1, keepdim=True)


online = Network().cuda()
target = copy.deepcopy(online)
optimizer = torch.optim.RMSprop(online.parameters(), lr=2e-4)
for _ in range(4):
    frames = torch.rand(64, 12, 84, 84, device="cuda")
    following = torch.rand(64 * 12, 12, 84, 84, device="cuda")
    reward = torch.rand(64, 12, device="cuda")
    later = target(following).amax(1).view(64, 12)
    returns = (reward + 0.99 * later).sum(1)
    q = online(frames).amax(1)
    loss = nn.functional.smooth_l1_loss(q, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
