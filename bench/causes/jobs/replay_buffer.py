"""Q-learning with a replay buffer on the GPU."""
import random

import torch
from torch import nn

q = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(),
    nn.Linear(5184, 256), nn.ReLU(), nn.Linear(256, 4),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
memory = []
for step in range(200):
    state = torch.rand(64, 4, 84, 84, device="cuda")
    memory.append((state, torch.rand(64, device="cuda")))
    states, rewards = random.choice(memory)
    loss = nn.functional.smooth_l1_loss(q(states).amax(1), rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
