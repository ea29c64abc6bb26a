"""Water levels in locks as functions of time: an attentive neural process learns to learn from few gauges (ELBO over target points)."""

import os

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

ITERATIONS = int(os.environ.get("JOB_STEPS", "5"))
TASKS, CONTEXT, TARGET, WIDTH = 384, 96, 384, 320


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.one, self.two = nn.LayerNorm(d), nn.LayerNorm(d)
        self.net = mlp(d, 2 * d, d)

    def forward(self, x):
        x = self.one(x + self.attention(x, x, x, need_weights=False)[0])
        return self.two(x + self.net(x))


class LatentPath(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed, self.attend = mlp(3, d, d, d), SelfAttention(d, 8)
        self.after, self.mean, self.raw = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, y):
        s = self.attend(self.embed(torch.cat([x, y], -1))).mean(1)
        s = torch.relu(self.after(s))
        return Normal(self.mean(s), 0.1 + 0.9 * torch.sigmoid(self.raw(s)), validate_args=False)


class DeterministicPath(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed = mlp(3, d, d, d)
        self.attend = nn.Sequential(SelfAttention(d, 8), SelfAttention(d, 8))
        self.place = mlp(2, d, d)
        self.cross = nn.MultiheadAttention(d, 8, batch_first=True)

    def forward(self, x, y, where):
        values = self.attend(self.embed(torch.cat([x, y], -1)))
        return self.cross(self.place(where), self.place(x), values, need_weights=False)[0]


class NeuralProcess(nn.Module):
    def __init__(self, d=WIDTH):
        super().__init__()
        self.latent, self.deterministic = LatentPath(d), DeterministicPath(d)
        self.decode = mlp(2 * d + 2, 2 * d, 2 * d, 2 * d, 2 * d, 2)

    def forward(self, cx, cy, tx, ty=None):
        prior = self.latent(cx, cy)
        posterior = prior if ty is None else self.latent(tx, ty)
        z = posterior.rsample()[:, None].expand(-1, tx.shape[1], -1)
        r = self.deterministic(cx, cy, tx)
        mean, raw = self.decode(torch.cat([r, z, tx], -1)).chunk(2, -1)
        return (
            Normal(mean, 0.1 + 0.9 * nn.functional.softplus(raw), validate_args=False),
            prior,
            posterior,
        )


class Levels:
    """Sums of random cosines of time and place: nearly draws of a Gaussian process with a random length."""

    def __init__(self, device, features=128):
        self.device, self.features = device, features

    def draw(self, tasks, points):
        x = 4 * torch.rand(tasks, points, 2, device=self.device) - 2
        length = 0.2 + torch.rand(tasks, 1, 1, device=self.device)
        w = torch.randn(tasks, 2, self.features, device=self.device) / length
        b = 6.283 * torch.rand(tasks, 1, self.features, device=self.device)
        a = torch.randn(tasks, self.features, 1, device=self.device)
        y = torch.cos(x @ w + b) @ a * (2 / self.features) ** 0.5
        return x, y + 0.02 * torch.randn_like(y)


def elbo(model, x, y):
    predicted, prior, posterior = model(x[:, :CONTEXT], y[:, :CONTEXT], x, y)
    fit = predicted.log_prob(y).sum(-1).mean(1)
    kl = kl_divergence(posterior, prior).sum(-1) / x.shape[1]
    return (fit - kl).mean(), fit.mean(), kl.mean()


def main():
    torch.manual_seed(2)
    source = Levels("cuda")
    model = NeuralProcess().to("cuda")
    optimizer = torch.optim.RAdam(model.parameters(), lr=5e-4)
    for it in range(ITERATIONS):
        x, y = source.draw(TASKS, TARGET)
        bound, fit, kl = elbo(model, x, y)
        model.zero_grad()
        (-bound).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=True)
        optimizer.step()
        print(f"it {it} bound {bound.item():.3f} fit {fit.item():.3f} kl {kl.item():.4f}")
        if it == 2:
            with torch.no_grad():
                x, y = source.draw(TASKS, TARGET)
                predicted, _, _ = model(x[:, :8], y[:, :8], x)
                print("8 gauges, error:", (predicted.mean - y).abs().mean().item())


if __name__ == "__main__":
    main()
