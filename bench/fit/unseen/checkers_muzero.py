"""Checkers by MuZero: representation, dynamics and prediction unrolled for five moves, gradients halved at each, categorical values, replay with priorities."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BINS, MOVES, PLANES, BOARD = 61, 512, 34, 10


@dataclasses.dataclass
class Settings:
    batch: int = 512
    unroll: int = 5
    channels: int = 128
    blocks: int = 5
    updates: int = 5
    discount: float = 0.997


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return F.relu(x + self.f(x))


def tower(cin, c, n):
    return nn.Sequential(
        nn.Conv2d(cin, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), *[Res(c) for _ in range(n)]
    )


def head(c, out):
    return nn.Sequential(
        nn.Conv2d(c, 4, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * BOARD**2, 128),
        nn.ReLU(),
        nn.Linear(128, out),
    )


class MuZero(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        c = s.channels
        self.represent = tower(PLANES, c, s.blocks)
        self.dynamics = tower(c + 1, c, s.blocks)
        self.reward, self.value, self.policy = head(c, BINS), head(c, BINS), head(c, MOVES)

    @staticmethod
    def rescale(h):
        low, high = h.amin((1, 2, 3), keepdim=True), h.amax((1, 2, 3), keepdim=True)
        return (h - low) / (high - low + 1e-5)

    def first(self, observation):
        h = self.rescale(self.represent(observation))
        return h, self.policy(h), self.value(h)

    def next(self, h, move):
        plane = (move.float() / MOVES)[:, None, None, None].expand(-1, 1, BOARD, BOARD)
        h = self.rescale(self.dynamics(torch.cat([h, plane], 1)))
        return h, self.reward(h), self.policy(h), self.value(h)


def two_hot(x):
    x = torch.sign(x) * (torch.sqrt(x.abs() + 1) - 1) + 0.001 * x
    x = x.clamp(-30, 30) + BINS // 2
    low = x.floor().long().clamp(0, BINS - 2)
    frac = x - low
    out = torch.zeros(*x.shape, BINS, device=x.device)
    out.scatter_(-1, low[..., None], (1 - frac)[..., None])
    return out.scatter_add_(-1, (low + 1)[..., None], frac[..., None])


def soft_ce(logits, target):
    return -(target * logits.log_softmax(-1)).sum(-1)


class Replay:
    def __init__(self, n=4096):
        self.p = np.ones(n)
        self.rng = np.random.default_rng(8)

    def draw(self, s):
        prob = self.p / self.p.sum()
        index = self.rng.choice(len(prob), s.batch, p=prob)
        weight = torch.from_numpy((len(prob) * prob[index]) ** -0.4).float()
        k = s.unroll + 1
        return (
            index,
            weight,
            torch.rand(s.batch, PLANES, BOARD, BOARD).round(),
            torch.randint(MOVES, (s.batch, s.unroll)),
            torch.randn(s.batch, k),
            torch.randn(s.batch, k),
            torch.rand(s.batch, k, MOVES).softmax(-1),
        )


def main():
    s = Settings()
    net, replay = MuZero(s).to("cuda"), Replay()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for update in range(s.updates):
        index, *tensors = replay.draw(s)
        weight, obs, moves, rewards, values, policies = (t.cuda() for t in tensors)
        h, p, v = net.first(obs)
        loss = soft_ce(p, policies[:, 0]) + 0.25 * soft_ce(v, two_hot(values[:, 0]))
        for k in range(s.unroll):
            h, r, p, v = net.next(h, moves[:, k])
            step = (
                soft_ce(r, two_hot(rewards[:, k + 1]))
                + soft_ce(p, policies[:, k + 1])
                + 0.25 * soft_ce(v, two_hot(values[:, k + 1]))
            )
            step.register_hook(lambda g: g / s.unroll)
            h.register_hook(lambda g: g * 0.5)
            loss = loss + step
        replay.p[index] = loss.detach().abs().cpu().numpy() + 1e-3
        opt.zero_grad()
        (loss * weight).mean().backward()
        opt.step()
        print(update, loss.mean().item())


main()
