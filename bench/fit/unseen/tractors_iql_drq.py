"""Steering of tractors from recorded drives: implicit Q-learning on pixels, shifted pictures, three optimizers, a slow pair of critics."""

import copy
import os
from itertools import chain

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

UPDATES = int(os.environ.get("JOB_STEPS", "5"))
BATCH, FRAMES, SIDE, ACTIONS = 1024, 3, 84, 4
EXPECTILE, TEMPERATURE, DISCOUNT, TAU = 0.8, 3.0, 0.99, 0.005


class Encoder(nn.Sequential):
    def __init__(self, width=48, out=128):
        layers, channels = [], 3 * FRAMES
        for stride in (2, 1, 1, 1):
            layers += [nn.Conv2d(channels, width, 3, stride), nn.ReLU()]
            channels = width
        super().__init__(
            *layers, nn.Flatten(), nn.Linear(width * 35 * 35, out), nn.LayerNorm(out), nn.Tanh()
        )


def head(size, out, hidden=512):
    return nn.Sequential(
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )


class Twin(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b = head(size + ACTIONS, 1), head(size + ACTIONS, 1)

    def forward(self, h, action):
        x = torch.cat([h, action], 1)
        return self.a(x).squeeze(1), self.b(x).squeeze(1)


class Actor(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net, self.log_std = head(size, ACTIONS), nn.Parameter(torch.zeros(ACTIONS))

    def log_prob(self, h, action):
        mean = torch.tanh(self.net(h))
        std = self.log_std.clamp(-5, 2).exp()
        return torch.distributions.Normal(mean, std, validate_args=False).log_prob(action).sum(1)


def shift(pictures, pad=4):
    """A random shift of up to four pixels, as in DrQ-v2."""
    x = F.pad(pictures.float(), (pad,) * 4, mode="replicate")
    n, full = len(x), SIDE + 2 * pad
    ends = torch.linspace(-1 + 1 / full, 1 - 1 / full, full, device=x.device)[:SIDE]
    base = torch.stack([ends[None].expand(SIDE, -1), ends[:, None].expand(-1, SIDE)], -1)[None]
    move = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * (2.0 / full)
    return F.grid_sample(x, base + move, padding_mode="zeros", align_corners=False) / 255 - 0.5


def drives(n):
    g = torch.Generator().manual_seed(77)
    picture = torch.randint(0, 256, (n, 3 * FRAMES, SIDE, SIDE), generator=g, dtype=torch.uint8)
    following = torch.roll(picture, -3, 1)
    action = torch.rand(n, ACTIONS, generator=g) * 1.8 - 0.9
    reward = -action.square().sum(1) + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(
        picture, action, reward, following, (torch.rand(n, generator=g) > 0.02).float()
    )


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(6)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    encoder = Encoder().to(device)
    critic, value, actor = Twin(128).to(device), head(128, 1).to(device), Actor(128).to(device)
    slow = copy.deepcopy(critic).requires_grad_(False)
    opt_q = torch.optim.Adam(chain(encoder.parameters(), critic.parameters()), 3e-4)
    opt_v = torch.optim.Adam(value.parameters(), 3e-4)
    opt_a = torch.optim.Adam(actor.parameters(), 3e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt_a, 1000)
    loader = DataLoader(drives(2 * BATCH), BATCH, shuffle=True, drop_last=True)
    for update, batch in zip(range(UPDATES), endless(loader)):
        picture, action, reward, following, alive = (t.to(device) for t in batch)
        h = encoder(shift(picture))
        with torch.no_grad():
            h_next = encoder(shift(following))
            q_slow = torch.minimum(*slow(h, action))

        v = value(h.detach()).squeeze(1)
        gap = q_slow - v
        loss_v = (torch.where(gap > 0, EXPECTILE, 1 - EXPECTILE) * gap.square()).mean()
        opt_v.zero_grad()
        loss_v.backward()
        opt_v.step()

        weight = (TEMPERATURE * gap.detach()).exp().clamp(max=100.0)
        loss_a = -(weight * actor.log_prob(h.detach(), action)).mean()
        opt_a.zero_grad()
        loss_a.backward()
        opt_a.step()
        cosine.step()

        with torch.no_grad():
            target = reward + DISCOUNT * alive * value(h_next).squeeze(1)
        loss_q = sum(F.mse_loss(q, target) for q in critic(h, action))
        opt_q.zero_grad()
        loss_q.backward()
        opt_q.step()
        with torch.no_grad():
            for a, b in zip(slow.parameters(), critic.parameters()):
                a.mul_(1 - TAU).add_(b, alpha=TAU)
        print(f"{update} q {loss_q.item():.3f} v {loss_v.item():.3f} actor {loss_a.item():.3f}")


if __name__ == "__main__":
    main()
