"""Weight of beehives as a latent SDE: a GRU reads backwards, Euler-Maruyama steps forward, KL along the path, annealed."""

import os

import torch
import torch.nn.functional as F
from torch import nn

steps = int(os.environ.get("JOB_STEPS", "5"))
device = "cuda"

B, T, SENSORS, LATENT, CONTEXT, HIDDEN, SUB = 3072, 40, 8, 24, 64, 384, 2


class LatentSDE(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.GRU(SENSORS, HIDDEN, batch_first=True)
        self.context = nn.Linear(HIDDEN, CONTEXT)
        self.z0 = nn.Linear(CONTEXT, 2 * LATENT)
        self.posterior = nn.Sequential(
            nn.Linear(LATENT + CONTEXT, HIDDEN),
            nn.Softplus(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Softplus(),
            nn.Linear(HIDDEN, LATENT),
        )
        self.prior = nn.Sequential(
            nn.Linear(LATENT, HIDDEN),
            nn.Softplus(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Softplus(),
            nn.Linear(HIDDEN, LATENT),
        )
        # one small net per dimension, as the noise is diagonal
        self.g_in = nn.Parameter(0.3 * torch.randn(LATENT, 16))
        self.g_bias = nn.Parameter(torch.zeros(LATENT, 16))
        self.g_out = nn.Parameter(0.3 * torch.randn(LATENT, 16))
        self.p0 = nn.Parameter(torch.zeros(2, LATENT))
        self.project = nn.Linear(LATENT, SENSORS)

    def diffusion(self, z):
        h = F.softplus(z[..., None] * self.g_in + self.g_bias)
        return torch.sigmoid((h * self.g_out).sum(-1)) + 1e-2

    def forward(self, x, dt):
        hidden, _ = self.read(x.flip(1))
        context = self.context(hidden).flip(1)
        mean, log_std = self.z0(context[:, 0]).chunk(2, -1)
        z = mean + log_std.exp() * torch.randn_like(mean)
        pm, ps = self.p0
        kl0 = ps - log_std + (log_std.mul(2).exp() + (mean - pm) ** 2) / (2 * ps.mul(2).exp()) - 0.5
        path, penalty = [z], 0.0
        for t in range(1, T):
            for _ in range(SUB):
                f = self.posterior(torch.cat([z, context[:, t]], -1))
                h = self.prior(z)
                g = self.diffusion(z)
                u = (f - h) / g
                penalty = penalty + 0.5 * u.square().sum(-1) * dt / SUB
                z = z + f * dt / SUB + g * (dt / SUB) ** 0.5 * torch.randn_like(z)
            path.append(z)
        guess = self.project(torch.stack(path, 1))
        return guess, kl0.sum(-1).mean() + penalty.mean()


def hives():
    t = torch.linspace(0, 6, T)[None, :, None]
    phase = 6.283 * torch.rand(B, 1, SENSORS)
    trend = torch.randn(B, 1, SENSORS).mul(0.3)
    x = torch.sin(t + phase) + trend * t + 0.1 * torch.randn(B, T, SENSORS).cumsum(1)
    return x.to(device)


torch.manual_seed(12)
model = LatentSDE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.997)

for step in range(steps):
    x = hives()
    guess, kl = model(x, 6 / T)
    loglik = (
        torch.distributions.Normal(guess, 0.05, validate_args=False).log_prob(x).sum((1, 2)).mean()
    )
    weight = min(1.0, (step + 1) / 100)
    loss = -loglik + weight * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"{step:3d} loglik {loglik.item():.1f} kl {kl.item():.2f} weight {weight:.2f}")
