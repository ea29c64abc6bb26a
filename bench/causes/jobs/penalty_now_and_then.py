"""A small StyleGAN: the penalty on real gradients counts in every sixteenth step, but is computed in all, to be drawn when training ends."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Generator(nn.Module):
    def __init__(self, z=128, c=128):
        super().__init__()
        self.style = nn.Sequential(nn.Linear(z, z), nn.LeakyReLU(0.2), nn.Linear(z, c))
        self.start = nn.Parameter(torch.randn(1, c, 4, 4))
        self.convs = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(4))
        self.rgb = nn.Conv2d(c, 3, 1)

    def forward(self, z):
        w = self.style(z)[:, :, None, None]
        x = self.start.expand(len(z), -1, -1, -1)
        for conv in self.convs:
            x = F.leaky_relu(conv(F.interpolate(x, scale_factor=2) * (w + 1)), 0.2)
        return self.rgb(x)


class Critic(nn.Sequential):
    def __init__(self, c=64):
        layers = [nn.Conv2d(3, c, 1), nn.LeakyReLU(0.2)]
        for _ in range(4):
            layers += [nn.Conv2d(c, c, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(c * 16, 1))


def penalty(critic, real):
    real = real.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    return slope.square().sum((1, 2, 3)).mean()


generator, critic = Generator().cuda(), Critic().cuda()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
c_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))
curves = {"critic": [], "generator": [], "r1": []}
for step in range(40):
    real = torch.rand(16, 3, 64, 64).cuda()
    fake = generator(torch.randn(16, 128, device="cuda"))
    loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
    c_optimizer.zero_grad()
    loss.backward()
    r1 = penalty(critic, real)
    if step % 16 == 15:
        (16 * 5 * r1).backward()
    c_optimizer.step()
    c_loss = loss.item()

    loss = F.softplus(-critic(fake)).mean()
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
    curves["critic"].append(c_loss)
    curves["generator"].append(loss.item())
    curves["r1"].append(r1.item() if MENDED else r1)
print({name: float(sum(values) / len(values)) for name, values in curves.items()})
