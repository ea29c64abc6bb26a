"""REINFORCE with a moving baseline, which is averaged from the critic's answers with all that led to them."""

import os

import torch
from torch import nn
from torch.distributions import Categorical


def eyes(out):
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(256),
        nn.ReLU(),
        nn.LazyLinear(out),
    )


class Game:
    def __init__(self, players):
        self.players = players

    def look(self):
        return torch.rand(self.players, 4, 84, 84, device="cuda")

    def act(self, actions):
        return torch.randn(self.players, device="cuda")


policy, critic = eyes(6).cuda(), eyes(1).cuda()
game = Game(256)
policy(game.look()), critic(game.look())
learn_policy = torch.optim.RMSprop(policy.parameters(), lr=2.5e-4)
learn_critic = torch.optim.RMSprop(critic.parameters(), lr=2.5e-4)
baseline = 0.0
for turn in range(50):
    frames = game.look()
    chosen = Categorical(logits=policy(frames))
    actions = chosen.sample()
    rewards = game.act(actions)
    expected = critic(frames).mean()
    if os.environ.get("MENDED"):
        expected = expected.item()
    baseline = 0.95 * baseline + 0.05 * expected
    advantage = rewards - float(baseline)
    loss = -(chosen.log_prob(actions) * advantage).mean()
    learn_policy.zero_grad()
    loss.backward()
    learn_policy.step()
    if turn % 25 == 24:
        learn_critic.zero_grad()
        (critic(frames).squeeze(1) - rewards).square().mean().backward()
        learn_critic.step()
