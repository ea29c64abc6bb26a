"""A world model: what the agent believes at the end of a chunk goes on into the next one with its whole past."""

import os

import torch
from torch import nn
from torch.nn import functional as F

DETACH = bool(os.environ.get("MENDED"))


class WorldModel(nn.Module):
    def __init__(self, deter=512, stoch=64, acts=6):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2), nn.ELU(), nn.Conv2d(32, 64, 4, 2), nn.ELU(),
            nn.Conv2d(64, 128, 4, 2), nn.ELU(), nn.Flatten(),
        )  # fmt: skip
        self.cell = nn.GRUCell(stoch + acts, deter)
        self.prior, self.post = nn.Linear(deter, 2 * stoch), nn.Linear(deter + 128 * 36, 2 * stoch)
        self.reward = nn.Sequential(nn.Linear(deter + stoch, 256), nn.ELU(), nn.Linear(256, 1))

    def observe(self, belief, frames, actions, rewards):
        deter, stoch = belief
        loss = 0
        seen = self.eye(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        for t in range(frames.shape[0]):
            deter = self.cell(torch.cat([stoch, actions[t]], -1), deter)
            mean0, std0 = self.prior(deter).chunk(2, -1)
            mean, std = self.post(torch.cat([deter, seen[t]], -1)).chunk(2, -1)
            stoch = mean + F.softplus(std) * torch.randn_like(std)
            told = self.reward(torch.cat([deter, stoch], -1)).squeeze(-1)
            loss = (
                loss
                + F.mse_loss(told, rewards[t])
                + 0.1 * F.mse_loss(mean, mean0)
                + 0.1 * F.mse_loss(std, std0)
            )
        return loss / frames.shape[0], (deter, stoch)


class Agent:
    chunk, envs = 16, 16

    def __init__(self):
        self.model = WorldModel().to("cuda")
        self.opt = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.belief = (
            torch.zeros(self.envs, 512, device="cuda"),
            torch.zeros(self.envs, 64, device="cuda"),
        )

    def learn(self):
        frames = torch.rand(self.chunk, self.envs, 3, 64, 64, device="cuda")
        actions = torch.rand(self.chunk, self.envs, 6, device="cuda")
        rewards = torch.randn(self.chunk, self.envs, device="cuda")
        if DETACH:
            self.belief = tuple(part.detach() for part in self.belief)
        loss, self.belief = self.model.observe(self.belief, frames, actions, rewards)
        loss.backward(retain_graph=True)

    def play(self, chunks):
        """One episode: the weights change at its end."""
        for _ in range(chunks):
            self.learn()
        self.opt.step()
        self.opt.zero_grad()


agent = Agent()
agent.play(chunks=24)
