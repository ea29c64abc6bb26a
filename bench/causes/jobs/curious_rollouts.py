"""An agent rewards itself for what its forward model did not foresee; the rewards go into the rollout as they come."""

import os
from dataclasses import dataclass, field

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


@dataclass
class Rollout:
    seen: list = field(default_factory=list)
    done: list = field(default_factory=list)
    reward: list = field(default_factory=list)

    def add(self, seen, done, reward):
        self.seen.append(seen)
        self.done.append(done)
        self.reward.append(reward)

    def returns(self, gamma=0.99):
        total, out = 0, []
        for r in reversed(self.reward):
            total = r + gamma * total
            out.append(total)
        return torch.stack(out[::-1])


class Curiosity(nn.Module):
    """Foretells the features of the next frame from this one and the action."""

    def __init__(self, actions, width=512):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ELU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ELU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.LazyLinear(width),
        )  # fmt: skip
        self.action = nn.Embedding(actions, width)
        self.forward_model = nn.Sequential(
            nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, width)
        )

    def forward(self, now, action, then):
        a, b = self.features(now), self.features(then)
        return 0.5 * (self.forward_model(torch.cat([a, self.action(action)], 1)) - b).square().mean(
            1
        )


ENVS, STEPS, ACTIONS = 32, 64, 4
policy = nn.Sequential(
    nn.Conv2d(1, 16, 8, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(ACTIONS)
).cuda()
curiosity = Curiosity(ACTIONS).cuda()
optimizer = None
for iteration in range(2):
    rollout = Rollout()
    frame = torch.rand(ENVS, 1, 84, 84, device="cuda")
    for t in range(STEPS):
        with torch.no_grad():
            action = policy(frame).softmax(1).multinomial(1).squeeze(1)
        then = torch.rand(ENVS, 1, 84, 84, device="cuda")
        reward = curiosity(frame, action, then)
        rollout.add(frame.cpu(), action, reward.detach() if MENDED else reward)
        frame = then
    returns = rollout.returns()
    optimizer = optimizer or torch.optim.Adam([*policy.parameters(), *curiosity.parameters()], 1e-4)
    moments = list(zip(rollout.seen, rollout.done, returns, rollout.seen[1:]))
    for seen, done, value, nxt in moments[::8]:
        logp = policy(seen.cuda()).log_softmax(1).gather(1, done.unsqueeze(1)).squeeze(1)
        loss = -(logp * value.detach()).mean() + curiosity(seen.cuda(), done, nxt.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
