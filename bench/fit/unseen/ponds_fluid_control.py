"""Ink in a pond steered to a shape: a differentiable fluid solver (advection by grid_sample, pressure by Jacobi), forces from a small net, fp32, gradients through every tick."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def laplace_pressure(div, rounds):
    p = torch.zeros_like(div)
    for _ in range(rounds):
        q = F.pad(p, (1, 1, 1, 1), mode="replicate")
        around = q[..., 1:-1, 2:] + q[..., 1:-1, :-2] + q[..., 2:, 1:-1] + q[..., :-2, 1:-1]
        p = (around - div) / 4
    return p


class Pond(nn.Module):
    """State: velocity (B, 2, N, N) and ink (B, 1, N, N)."""

    def __init__(self, n, rounds):
        super().__init__()
        axis = torch.linspace(-1, 1, n)
        self.register_buffer(
            "grid", torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)[None]
        )
        self.n, self.rounds = n, rounds

    def carry(self, what, v, dt):
        back = self.grid - dt * v.permute(0, 2, 3, 1) * 2 / self.n
        return F.grid_sample(what, back, padding_mode="border", align_corners=True)

    def forward(self, v, ink, force, dt=1.0):
        v = self.carry(v, v, dt) + dt * force
        dx = F.pad(v[:, :1, :, 2:] - v[:, :1, :, :-2], (1, 1, 0, 0)) / 2
        dy = F.pad(v[:, 1:, 2:] - v[:, 1:, :-2], (0, 0, 1, 1)) / 2
        p = laplace_pressure(dx + dy, self.rounds)
        gx = F.pad(p[..., 2:] - p[..., :-2], (1, 1, 0, 0)) / 2
        gy = F.pad(p[..., 2:, :] - p[..., :-2, :], (0, 0, 1, 1)) / 2
        v = v - torch.cat([gx, gy], 1)
        return v, self.carry(ink, v, dt)


class Hand(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, width, 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"),
            nn.SiLU(),
            nn.Conv2d(width, 2, 3, padding=1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        )

    def forward(self, v, ink, goal):
        return 0.1 * torch.tanh(self.net(torch.cat([v, ink, goal], 1)))


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--size", type=int, default=192)
    cli.add_argument("--ticks", type=int, default=16)
    cli.add_argument("--rounds", type=int, default=10)
    cli.add_argument("--batch", type=int, default=36)
    a = cli.parse_args()
    pond, hand = Pond(a.size, a.rounds).cuda(), Hand(32).cuda()
    opt = torch.optim.Adam(hand.parameters(), lr=1e-3)
    for it in range(4):
        v = 0.01 * torch.randn(a.batch, 2, a.size, a.size, device="cuda")
        ink = torch.rand(a.batch, 1, a.size // 8, a.size // 8, device="cuda")
        ink = F.interpolate(ink, size=a.size, mode="bicubic").clamp(0, 1)
        goal = ink.roll((20, -12), (2, 3)).flip(3)
        effort = 0.0
        for _ in range(a.ticks):
            force = hand(v, ink, goal)
            effort = effort + force.square().mean()
            v, ink = pond(v, ink, force)
        loss = F.mse_loss(ink, goal) + 0.05 * effort / a.ticks
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.5)
        opt.step()
        print(f"try {it}: {loss.item():.5f}")


if __name__ == "__main__":
    main()
