"""A generator and its critic go on from a file that was mapped to the GPU; the trainer keeps what it read."""

import os
import tempfile

import torch
from torch import nn

DEVICE = torch.device("cuda", 0)


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Gan:
    def __init__(self):
        self.generator = mlp(128, 1536, 1536, 1536, 3072).to(DEVICE)
        self.critic = mlp(3072, 1536, 1536, 1536, 1).to(DEVICE)
        self.averaged = mlp(128, 1536, 1536, 1536, 3072).to(DEVICE).requires_grad_(False)
        self.by_generator = torch.optim.SGD(self.generator.parameters(), lr=1e-3)
        self.by_critic = torch.optim.SGD(self.critic.parameters(), lr=1e-3)
        self.saved = {"step": 0}

    def resume(self, path):
        where = "cpu" if os.environ.get("MENDED") else DEVICE
        self.saved = torch.load(path, map_location=where)
        for part in ("generator", "critic", "averaged"):
            getattr(self, part).load_state_dict(self.saved[part])

    def step(self, real):
        z = torch.randn(len(real), 128, device=DEVICE)
        fake = self.generator(z)
        loss = self.critic(fake.detach()).relu().mean() - self.critic(real).mean()
        self.by_critic.zero_grad()
        loss.backward()
        self.by_critic.step()
        self.by_generator.zero_grad()
        (-self.critic(fake).mean()).backward()
        self.by_generator.step()
        for average, p in zip(self.averaged.parameters(), self.generator.parameters()):
            average.lerp_(p, 0.001)


def earlier_run(path):
    """Weights, their averages, and a history of averages at three more rates."""
    generator, critic = mlp(128, 1536, 1536, 1536, 3072), mlp(3072, 1536, 1536, 1536, 1)
    weights = generator.state_dict()
    averages = [{k: v.clone() for k, v in weights.items()} for _ in range(4)]
    torch.save(
        {
            "generator": weights, "critic": critic.state_dict(), "averaged": averages[0],
            "at_other_rates": averages[1:], "step": 120_000,
        },
        path,
    )  # fmt: skip


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "latest.pt")
    earlier_run(path)
    gan = Gan()
    gan.resume(path)
for step in range(gan.saved["step"], gan.saved["step"] + 4):
    gan.step(torch.rand(512, 3072, device=DEVICE))
