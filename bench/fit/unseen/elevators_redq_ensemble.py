"""Dispatch of elevators by REDQ: ten Q networks as one batched product, a random pair for the target, three optimizers."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

OBS, ACT, MEMBERS, PAIR, BATCH, UPDATES = 128, 16, 10, 2, 8192, 3
device = torch.device("cuda")


class EnsembleLinear(nn.Module):
    def __init__(self, members, inputs, outputs):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight)


class Block(nn.Module):
    def __init__(self, members, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = EnsembleLinear(members, width, 2 * width)
        self.down = EnsembleLinear(members, 2 * width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Critics(nn.Module):
    def __init__(self, width=768, blocks=2):
        super().__init__()
        self.inp = EnsembleLinear(MEMBERS, OBS + ACT, width)
        self.blocks = nn.Sequential(*[Block(MEMBERS, width) for _ in range(blocks)])
        self.out = nn.Sequential(nn.LayerNorm(width), EnsembleLinear(MEMBERS, width, 1))

    def forward(self, obs, act):
        x = torch.cat([obs, act], -1).expand(MEMBERS, -1, -1)
        return self.out(self.blocks(self.inp(x))).squeeze(-1)


class Actor(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBS, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.mean, self.log_std = nn.Linear(width, ACT), nn.Linear(width, ACT)

    def forward(self, obs):
        h = self.body(obs)
        mean, log_std = self.mean(h), self.log_std(h).clamp(-10, 2)
        raw = mean + log_std.exp() * torch.randn_like(mean)
        act = torch.tanh(raw)
        normal = -0.5 * ((raw - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        correction = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return act, (normal - correction).sum(-1)


class Replay:
    """Transitions stay on the GPU; a made-up linear system fills the memory."""

    def __init__(self, capacity):
        self.obs = torch.randn(capacity, OBS, device=device)
        self.act = torch.rand(capacity, ACT, device=device) * 2 - 1
        drift = torch.randn(OBS + ACT, OBS, device=device) / math.sqrt(OBS + ACT)
        self.next = torch.cat([self.obs, self.act], -1) @ drift
        self.reward = -self.next[:, :8].abs().mean(-1) - 0.01 * self.act.square().sum(-1)
        self.done = (torch.rand(capacity, device=device) < 0.01).float()

    def sample(self, n):
        i = torch.randint(len(self.obs), (n,), device=device)
        return self.obs[i], self.act[i], self.reward[i], self.next[i], self.done[i]


torch.manual_seed(1)
replay = Replay(200_000)
actor, critics = Actor().to(device), Critics().to(device)
target = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros((), device=device, requires_grad=True)
opt_actor = torch.optim.Adam(actor.parameters(), lr=3e-4)
opt_critic = torch.optim.Adam(critics.parameters(), lr=3e-4)
opt_alpha = torch.optim.Adam([log_alpha], lr=3e-4)

for step in range(5):
    for _ in range(UPDATES):
        obs, act, reward, following, done = replay.sample(BATCH)
        with torch.no_grad():
            next_act, next_logp = actor(following)
            pair = torch.randperm(MEMBERS, device=device)[:PAIR]
            value = target(following, next_act)[pair].amin(0) - log_alpha.exp() * next_logp
            goal = reward + 0.99 * (1 - done) * value
        critic_loss = F.mse_loss(critics(obs, act), goal.expand(MEMBERS, -1)) * MEMBERS
        opt_critic.zero_grad()
        critic_loss.backward()
        opt_critic.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critics.parameters()), 0.005)

    new_act, logp = actor(obs)
    critics.requires_grad_(False)
    actor_loss = (log_alpha.exp().detach() * logp - critics(obs, new_act).mean(0)).mean()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()
    critics.requires_grad_(True)

    alpha_loss = -(log_alpha * (logp.detach() - ACT)).mean()
    opt_alpha.zero_grad()
    alpha_loss.backward()
    opt_alpha.step()
    print(
        f"step {step} critic {critic_loss.item():.4f} actor {actor_loss.item():.4f} alpha {log_alpha.exp().item():.4f}"
    )
