"""Dreams of an agent: a recurrent state space model learns from replayed frames, actor and critic from imagined latents; three optimizers, straight-through samples."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, Normal, OneHotCategorical, kl_divergence

DET, CLASSES, GROUPS, ACTIONS = 512, 32, 32, 6
STOCH = CLASSES * GROUPS


def mlp(i, o, hidden=512):
    return nn.Sequential(
        nn.Linear(i, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, o)
    )


def categorical(logits):
    return OneHotCategorical(logits=logits.unflatten(-1, (GROUPS, CLASSES)), validate_args=False)


def straight_through(logits):
    dist = categorical(logits)
    sample = dist.sample() + dist.probs - dist.probs.detach()
    return sample.flatten(-2)


class WorldModel(nn.Module):
    def __init__(self, depth=48):
        super().__init__()
        c = [3, depth, 2 * depth, 4 * depth, 8 * depth]
        self.encoder = nn.Sequential(
            *[layer for i, o in zip(c, c[1:]) for layer in (nn.Conv2d(i, o, 4, 2, 1), nn.ELU())],
            nn.Flatten(),
        )
        self.inp = nn.Linear(STOCH + ACTIONS, DET)
        self.gru = nn.GRUCell(DET, DET)
        self.prior = mlp(DET, STOCH)
        self.posterior = mlp(DET + 8 * depth * 16, STOCH)
        self.start = nn.Linear(DET + STOCH, 8 * depth * 16)
        d = [8 * depth, 4 * depth, 2 * depth, depth, 3]
        self.decoder = nn.Sequential(
            nn.Unflatten(-1, (8 * depth, 4, 4)),
            *[
                layer
                for i, o in zip(d, d[1:])
                for layer in (nn.ELU(), nn.ConvTranspose2d(i, o, 4, 2, 1))
            ],
        )
        self.reward = mlp(DET + STOCH, 1)

    def imagine(self, h, z, action):
        h = self.gru(F.elu(self.inp(torch.cat([z, action], -1))), h)
        return h, self.prior(h)

    def loss(self, frames, actions, rewards):
        b, t = frames.shape[:2]
        embedded = self.encoder(frames.flatten(0, 1)).view(b, t, -1)
        h, z = frames.new_zeros(b, DET), frames.new_zeros(b, STOCH)
        states, priors, posteriors = [], [], []
        for i in range(t):
            h, prior = self.imagine(h, z, actions[:, i])
            posterior = self.posterior(torch.cat([h, embedded[:, i]], -1))
            z = straight_through(posterior)
            states.append(torch.cat([h, z], -1))
            priors.append(prior)
            posteriors.append(posterior)
        s, p, q = (torch.stack(x, 1) for x in (states, priors, posteriors))
        picture = self.decoder(self.start(s).flatten(0, 1)).view_as(frames)
        recon = (picture - frames).square().flatten(2).sum(-1).mean()
        reward = (self.reward(s).squeeze(-1) - rewards).square().mean()
        kl = 0.8 * kl_divergence(categorical(q.detach()), categorical(p)).sum(-1).mean()
        kl = kl + 0.2 * kl_divergence(categorical(q), categorical(p.detach())).sum(-1).mean()
        return recon + reward + kl, s.detach()


def imagination(world, actor, start, horizon=10):
    h, z = start.split([DET, STOCH], -1)
    states, entropy = [], []
    for _ in range(horizon):
        mean, std = actor(torch.cat([h, z], -1).detach()).chunk(2, -1)
        dist = Independent(Normal(torch.tanh(mean), F.softplus(std) + 0.1, validate_args=False), 1)
        h, logits = world.imagine(h, z, dist.rsample())
        z = straight_through(logits)
        states.append(torch.cat([h, z], -1))
        entropy.append(dist.entropy())
    return torch.stack(states), torch.stack(entropy)


def main():
    dev = "cuda"
    world = WorldModel().to(dev)
    actor, critic = mlp(DET + STOCH, 2 * ACTIONS).to(dev), mlp(DET + STOCH, 1).to(dev)
    slow = copy.deepcopy(critic).requires_grad_(False)
    w_opt = torch.optim.Adam(world.parameters(), lr=2e-4, eps=1e-5)
    a_opt = torch.optim.Adam(actor.parameters(), lr=4e-5, eps=1e-5)
    c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4, eps=1e-5)
    for update in range(4):
        frames = (
            torch.randint(0, 256, (32, 32, 3, 64, 64), dtype=torch.uint8).to(dev).float() / 255
            - 0.5
        )
        actions = torch.rand(32, 32, ACTIONS, device=dev) * 2 - 1
        rewards = torch.randn(32, 32, device=dev)
        w_loss, states = world.loss(frames, actions, rewards)
        w_opt.zero_grad()
        w_loss.backward()
        nn.utils.clip_grad_norm_(world.parameters(), 100.0)
        w_opt.step()

        world.requires_grad_(False)
        dreamt, entropy = imagination(world, actor, states.flatten(0, 1))
        reward, value = world.reward(dreamt).squeeze(-1), slow(dreamt).squeeze(-1)
        target = [value[-1]]
        for i in range(len(reward) - 2, -1, -1):
            target.append(reward[i] + 0.99 * (0.05 * value[i] + 0.95 * target[-1]))
        target = torch.stack(target[::-1])
        a_loss = -(target + 1e-3 * entropy).mean()
        a_opt.zero_grad()
        a_loss.backward()
        a_opt.step()
        world.requires_grad_(True)

        c_loss = (critic(dreamt.detach()).squeeze(-1) - target.detach()).square().mean()
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()
        with torch.no_grad():
            for a, b in zip(slow.parameters(), critic.parameters()):
                a.lerp_(b, 0.02)
        print(update, w_loss.item(), a_loss.item(), c_loss.item())


if __name__ == "__main__":
    main()
