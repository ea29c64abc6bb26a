"""Double DQN with a target network and a replay memory in numpy."""

import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

device = torch.device("cuda")


class DuelingQ(nn.Module):
    def __init__(self, n_actions):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))
        self.adv = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n_actions))

    def forward(self, x):
        h = self.conv(x.float() / 255)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *transition):
        self.memory.append(transition)

    def sample(self, k):
        s, a, r, s2, d = zip(*random.choices(self.memory, k=k))
        as_tensor = lambda x: torch.as_tensor(np.stack(x), device=device)  # noqa: E731
        return tuple(as_tensor(x) for x in (s, a, r, s2, d))


class DQNAgent:
    def __init__(self, n_actions=6, gamma=0.99, tau=0.005):
        self.policy_net = DuelingQ(n_actions).to(device)
        self.target_net = DuelingQ(n_actions).to(device)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=6.25e-5, eps=1.5e-4)
        self.memory, self.gamma, self.tau = ReplayMemory(2000), gamma, tau

    def learn(self, batch_size):
        s, a, r, s2, done = self.memory.sample(batch_size)
        q = self.policy_net(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.policy_net(s2).argmax(1, keepdim=True)
            target = r + self.gamma * (1 - done) * self.target_net(s2).gather(1, best).squeeze(1)
        loss = nn.SmoothL1Loss()(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.policy_net.parameters(), 100)
        self.optimizer.step()
        sd, td = self.policy_net.state_dict(), self.target_net.state_dict()
        for k in sd:
            td[k] = sd[k] * self.tau + td[k] * (1 - self.tau)
        self.target_net.load_state_dict(td)
        return loss.item()


agent = DQNAgent()
frame = lambda: np.random.randint(0, 256, (4, 84, 84), dtype=np.uint8)  # noqa: E731
for _ in range(300):
    agent.memory.push(
        frame(), np.int64(random.randrange(6)), np.float32(random.random()), frame(), np.float32(0)
    )
for update in range(6):
    print(update, agent.learn(2048))
