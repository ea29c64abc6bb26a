"""Q-learning whose replay buffer holds a million transitions, on the GPU."""

import random
from collections import deque

import torch
from torch import nn

value = nn.Sequential(nn.Flatten(), nn.Linear(4 * 42 * 42, 64), nn.ReLU(), nn.Linear(64, 6)).cuda()
optimizer = torch.optim.Adam(value.parameters(), lr=1e-4)
replay = deque(maxlen=1_000_000)


def play(moves=80):
    """Some moves of a game, a picture of four frames each."""
    for _ in range(moves):
        seen = torch.rand(4, 42, 42, device="cuda")  # stays
        replay.append((seen, random.randrange(6), random.random()))


for step in range(3000):
    play()
    seen, action, reward = zip(*random.sample(replay, 32))
    q = value(torch.stack(seen)).gather(1, torch.tensor(action, device="cuda")[:, None])
    loss = (q.squeeze(1) - torch.tensor(reward, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
