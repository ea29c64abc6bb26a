"""Soft actor-critic from pixels (DrQ): random shifts, a replay buffer on the host, twin critics, learned temperature."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ReplayBuffer:
    def __init__(self, capacity, shape, actions):
        self.obs = np.random.randint(0, 255, (capacity, *shape), dtype=np.uint8)
        self.actions = np.random.uniform(-1, 1, (capacity, actions)).astype(np.float32)
        self.rewards = np.random.randn(capacity, 1).astype(np.float32)
        self.rng = np.random.default_rng(0)

    def sample(self, n, device):
        i = self.rng.integers(0, len(self.obs) - 1, n)
        to = lambda a: torch.as_tensor(a, device=device)
        return (
            to(self.obs[i]).float(),
            to(self.actions[i]),
            to(self.rewards[i]),
            to(self.obs[i + 1]).float(),
        )


def random_shift(x, pad=4):
    n, _, h, w = x.shape
    x = F.pad(x, (pad,) * 4, "replicate")
    size = h + 2 * pad
    arange = torch.linspace(-1 + 1 / size, 1 - 1 / size, size, device=x.device)[:h]
    base = torch.stack(torch.meshgrid(arange, arange, indexing="xy"), -1)[None].repeat(n, 1, 1, 1)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * 2.0 / size
    return F.grid_sample(x, base + shift, padding_mode="zeros", align_corners=False)


class PixelEncoder(nn.Module):
    def __init__(self, channels=9, out=50):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, 32, 3, 2)] + [nn.Conv2d(32, 32, 3) for _ in range(3)]
        )
        self.head = nn.Sequential(nn.Linear(32 * 35 * 35, out), nn.LayerNorm(out), nn.Tanh())

    def forward(self, x):
        x = x / 255.0 - 0.5
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.head(x.flatten(1))


def q_net(i, hidden=1024):
    return nn.Sequential(
        nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


class Critic(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.encoder = PixelEncoder()
        self.q1, self.q2 = q_net(50 + actions), q_net(50 + actions)

    def forward(self, obs, action):
        h = torch.cat([self.encoder(obs), action], 1)
        return self.q1(h), self.q2(h)


class Actor(nn.Module):
    def __init__(self, actions, encoder):
        super().__init__()
        self.encoder = encoder
        self.net = nn.Sequential(
            nn.Linear(50, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, 2 * actions),
        )

    def forward(self, obs):
        with torch.no_grad():
            h = self.encoder(obs)
        mu, log_std = self.net(h).chunk(2, 1)
        log_std = -10 + 6 * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mu)
        action = torch.tanh(mu + noise * log_std.exp())
        logp = (-0.5 * noise**2 - log_std - 0.919).sum(1, keepdim=True)
        return action, logp - torch.log(1 - action**2 + 1e-6).sum(1, keepdim=True)


def main():
    device, n_act, batch = "cuda", 6, 512
    buffer = ReplayBuffer(2000, (9, 84, 84), n_act)
    critic = Critic(n_act).to(device)
    target = copy.deepcopy(critic).requires_grad_(False)
    actor = Actor(n_act, critic.encoder).to(device)
    log_alpha = torch.tensor(np.log(0.1), device=device, requires_grad=True)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    actor_opt = torch.optim.Adam(actor.net.parameters(), lr=1e-3)
    alpha_opt = torch.optim.Adam([log_alpha], lr=1e-4, betas=(0.5, 0.999))

    for update in range(8):
        obs, action, reward, nxt = buffer.sample(batch, device)
        views, next_views = (
            [random_shift(obs) for _ in range(2)],
            [random_shift(nxt) for _ in range(2)],
        )
        with torch.no_grad():
            backup = 0
            for view in next_views:
                a, logp = actor(view)
                q = torch.min(*target(view, a)) - log_alpha.exp() * logp
                backup = backup + (reward + 0.99 * q) / 2
        critic_loss = 0
        for view in views:
            q1, q2 = critic(view, action)
            critic_loss = critic_loss + F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        if update % 2 == 0:
            a, logp = actor(views[0])
            actor_loss = (log_alpha.exp().detach() * logp - torch.min(*critic(views[0], a))).mean()
            actor_opt.zero_grad()
            actor_loss.backward()
            actor_opt.step()
            alpha_loss = (log_alpha.exp() * (-logp - n_act).detach()).mean()
            alpha_opt.zero_grad()
            alpha_loss.backward()
            alpha_opt.step()
        with torch.no_grad():
            for p, t in zip(critic.parameters(), target.parameters()):
                t.lerp_(p, 0.01)
        print(f"{update} critic {critic_loss.item():.4f}")


if __name__ == "__main__":
    main()
