"""Soft actor-critic with wide networks; the states of its three Adams are more than fits."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = bool(os.environ.get("MENDED"))
OBS, ACT, WIDE = 376, 17, 4096


def mlp(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_optimizer(net):
    return (
        torch.optim.SGD(net.parameters(), lr=3e-4)
        if MENDED
        else torch.optim.Adam(net.parameters(), lr=3e-4)
    )


class SAC:
    def __init__(self):
        self.actor = mlp([OBS, WIDE, WIDE, 2 * ACT]).cuda()
        self.q1 = mlp([OBS + ACT, WIDE, WIDE, WIDE, 1]).cuda()
        self.q2 = mlp([OBS + ACT, WIDE, WIDE, WIDE, 1]).cuda()
        self.q1_opt, self.q2_opt = make_optimizer(self.q1), make_optimizer(self.q2)
        self.pi_opt = make_optimizer(self.actor)

    def act(self, obs):
        mean, log_std = self.actor(obs).chunk(2, -1)
        pi = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
        u = pi.rsample()
        return torch.tanh(u), pi.log_prob(u).sum(-1)

    def learn(self, obs, action, reward, nxt):
        with torch.no_grad():
            a2, logp = self.act(nxt)
            x2 = torch.cat([nxt, a2], -1)
            target = reward + 0.99 * (torch.min(self.q1(x2), self.q2(x2)).squeeze(-1) - 0.2 * logp)
        x = torch.cat([obs, action], -1)
        for q, opt in ((self.q1, self.q1_opt), (self.q2, self.q2_opt)):
            opt.zero_grad()
            F.mse_loss(q(x).squeeze(-1), target).backward()
            opt.step()
        a, logp = self.act(obs)
        xa = torch.cat([obs, a], -1)
        self.pi_opt.zero_grad()
        (0.2 * logp - torch.min(self.q1(xa), self.q2(xa)).squeeze(-1)).mean().backward()
        self.pi_opt.step()


agent = SAC()
for _ in range(4):
    agent.learn(
        torch.randn(256, OBS, device="cuda"), torch.rand(256, ACT, device="cuda"),
        torch.randn(256, device="cuda"), torch.randn(256, OBS, device="cuda"),
    )  # fmt: skip
