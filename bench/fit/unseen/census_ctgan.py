"""Made-up census rows by CTGAN: a conditional generator of mixed columns against a packed critic with gradient penalty."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

CATEGORIES = [2, 2, 3, 5, 7, 9, 12, 16, 16, 24, 41, 52, 7, 3, 2, 15, 6, 42, 100, 8]
CONTINUOUS, MODES, PAC = 14, 10, 10
COND = sum(CATEGORIES)
# A continuous column is a value within a mode and the one-hot mode.
SPANS = [(1, "tanh"), (MODES, "softmax")] * CONTINUOUS + [(n, "softmax") for n in CATEGORIES]
DATA = sum(n for n, _ in SPANS)


class Residual(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return torch.cat([self.net(x), x], 1)


class Generator(nn.Module):
    def __init__(self, noise, width, depth):
        super().__init__()
        layers, size = [], noise + COND
        for _ in range(depth):
            layers.append(Residual(size, width))
            size += width
        self.net = nn.Sequential(*layers, nn.Linear(size, DATA))

    def forward(self, z, cond):
        raw = self.net(torch.cat([z, cond], 1))
        parts = []
        for (_, kind), part in zip(SPANS, raw.split([n for n, _ in SPANS], 1)):
            parts.append(torch.tanh(part) if kind == "tanh" else F.gumbel_softmax(part, tau=0.2))
        return torch.cat(parts, 1), raw[:, -COND:]


class Critic(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers, size = [], PAC * (DATA + COND)
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.LeakyReLU(0.2), nn.Dropout(0.5)]
            size = width
        self.net = nn.Sequential(*layers, nn.Linear(size, 1))

    def forward(self, rows):
        return self.net(rows.view(-1, rows.shape[1] * PAC))


def sample_condition(n, device):
    """One category of one column per row; the mask tells the column."""
    column = torch.randint(len(CATEGORIES), (n,), device=device)
    sizes = torch.tensor(CATEGORIES, device=device)
    starts = sizes.cumsum(0) - sizes
    place = starts[column] + (torch.rand(n, device=device) * sizes[column]).long()
    cond = F.one_hot(place, COND).float()
    return cond, column


def real_rows(cond, device):
    parts = []
    for n, kind in SPANS:
        if kind == "tanh":
            parts.append(torch.rand(len(cond), 1, device=device) * 2 - 1)
        else:
            weights = torch.linspace(1.0, 0.2, n, device=device)
            parts.append(F.one_hot(torch.multinomial(weights, len(cond), True), n).float())
    return torch.cat(parts, 1)


def penalty(critic, real, fake):
    alpha = torch.rand(len(real) // PAC, 1, 1, device=real.device)
    alpha = alpha.expand(-1, PAC, real.shape[1]).reshape_as(real)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_()
    score = critic(mixed)
    (grad,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True)
    return ((grad.view(-1, PAC * real.shape[1]).norm(2, dim=1) - 1) ** 2).mean() * 10


def condition_loss(raw, cond, column):
    losses = []
    for part, want in zip(raw.split(CATEGORIES, 1), cond.split(CATEGORIES, 1)):
        losses.append(F.cross_entropy(part, want.argmax(1), reduction="none"))
    return torch.stack(losses, 1).gather(1, column[:, None]).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda"
    generator = Generator(128, args.width, 3).to(device)
    critic = Critic(args.width, 2).to(device)
    opt_g = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.9), weight_decay=1e-6)
    opt_c = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.9))
    for step in range(args.steps):
        cond, _ = sample_condition(args.batch, device)
        with torch.no_grad():
            fake, _ = generator(torch.randn(args.batch, 128, device=device), cond)
        real = torch.cat(
            [real_rows(cond, device), cond[torch.randperm(args.batch, device=device)]], 1
        )
        fake = torch.cat([fake, cond], 1)
        loss_c = critic(fake).mean() - critic(real).mean()
        opt_c.zero_grad(set_to_none=False)
        pen = penalty(critic, real, fake)
        pen.backward(retain_graph=True)
        loss_c.backward()
        opt_c.step()

        cond, column = sample_condition(args.batch, device)
        fake, raw = generator(torch.randn(args.batch, 128, device=device), cond)
        loss_g = -critic(torch.cat([fake, cond], 1)).mean() + condition_loss(raw, cond, column)
        opt_g.zero_grad(set_to_none=False)
        loss_g.backward()
        opt_g.step()
        print(
            f"step {step} critic {loss_c.item():.4f} penalty {pen.item():.4f} generator {loss_g.item():.4f}"
        )


if __name__ == "__main__":
    main()
