"""PPO plays sixteen games, then learns; the whole rollout is one minibatch."""

import os
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

Config = namedtuple("Config", "envs horizon minibatches epochs actions clip")
cfg = Config(16, 64, 16 if os.environ.get("MENDED") else 1, 2, 15, 0.2)


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class Impala(nn.Module):
    def __init__(self, actions):
        super().__init__()
        body, c = [], 3
        for out in (16, 32, 32):
            body += [nn.Conv2d(c, out, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            body += [ResidualBlock(out), ResidualBlock(out)]
            c = out
        self.body = nn.Sequential(
            *body, nn.Flatten(), nn.ReLU(), nn.Linear(32 * 64, 256), nn.ReLU()
        )
        self.pi, self.v = nn.Linear(256, actions), nn.Linear(256, 1)

    def forward(self, frames):
        h = self.body(frames.float() / 255)
        return Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


def play(agent):
    """A rollout, kept in host memory; frames are bytes."""
    store = []
    with torch.no_grad():
        for _ in range(cfg.horizon):
            frames = torch.randint(0, 256, (cfg.envs, 3, 64, 64), dtype=torch.uint8)
            dist, value = agent(frames.cuda())
            action = dist.sample()
            store.append((frames, action.cpu(), dist.log_prob(action).cpu(), value.cpu()))
    return [torch.cat(column) for column in zip(*store)]


def learn(agent, opt, rollout):
    frames, actions, old, values = rollout
    advantage = torch.randn(len(values))
    for _ in range(cfg.epochs):
        for part in torch.randperm(len(frames)).chunk(cfg.minibatches):
            dist, v = agent(frames[part].cuda())
            adv = advantage[part].cuda()
            ratio = (dist.log_prob(actions[part].cuda()) - old[part].cuda()).exp()
            surrogate = torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv)
            loss = -surrogate.mean() + 0.5 * F.mse_loss(v, values[part].cuda() + adv)
            loss = loss - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()


agent = Impala(cfg.actions).cuda()
opt = torch.optim.Adam(agent.parameters(), lr=5e-4, eps=1e-5)
for update in range(2):
    learn(agent, opt, play(agent))
