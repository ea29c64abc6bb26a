"""A Wasserstein GAN of handwritten digits. After each step the critic is asked how far apart true and false are, for a curve."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=36)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--latent", type=int, default=100)
parser.add_argument("--clip", type=float, default=0.01)
parser.add_argument(
    "--critic", type=int, default=2, help="steps of the critic for one of the generator"
)
args = parser.parse_args([])


def generator(z, c=48):
    return nn.Sequential(
        nn.Linear(z, 4 * c * 64), nn.Unflatten(1, (4 * c, 8, 8)), nn.BatchNorm2d(4 * c), nn.ReLU(True),
        nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1), nn.BatchNorm2d(2 * c), nn.ReLU(True),
        nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.BatchNorm2d(c), nn.ReLU(True),
        nn.Conv2d(c, 1, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def critic(c=48):
    return nn.Sequential(
        nn.Conv2d(1, c, 3, 1, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(c, 2 * c, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * c, 4 * c, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(4 * c * 64, 1),
    )  # fmt: skip


def digits(batch):
    g = torch.Generator().manual_seed(28)
    while True:
        yield torch.rand(batch, 1, 32, 32, generator=g) * 2 - 1


netG, netD = generator(args.latent).cuda(), critic().cuda()
optG = torch.optim.RMSprop(netG.parameters(), lr=5e-5)
optD = torch.optim.RMSprop(netD.parameters(), lr=5e-5)
curve = []

for step, real in zip(range(args.steps), digits(args.batch)):
    real = real.cuda()
    z = torch.randn(args.batch, args.latent, device="cuda")

    # The critic.
    fake = netG(z).detach()
    optD.zero_grad()
    (netD(fake).mean() - netD(real).mean()).backward()
    optD.step()
    with torch.no_grad():
        for p in netD.parameters():
            p.clamp_(-args.clip, args.clip)

    # The generator, now and then.
    if step % args.critic == 0:
        optG.zero_grad()
        (-netD(netG(z)).mean()).backward()
        optG.step()

    # How far apart are they?
    distance = netD(real).mean() - netD(fake).mean()
    curve.append(distance.item() if os.environ.get("MENDED") else distance)
    if step % 12 == 11:
        print(f"step {step}: {sum(float(d) for d in curve[-12:]) / 12:.5f}")

print(len(curve), "points")
