"""A GAN of faces with spectral norms and hinge losses; the batch is too large for both its networks."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

device = torch.device("cuda")
batch_size = 16 if os.environ.get("MENDED") else 96
latent = 128


class Up(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, 1, 1), nn.Conv2d(cout, cout, 3, 1, 1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = F.interpolate(F.relu(self.bn1(x)), scale_factor=2)
        h = self.c2(F.relu(self.bn2(self.c1(h))))
        return h + self.skip(F.interpolate(x, scale_factor=2))


def sn_conv(*args):
    return spectral_norm(nn.Conv2d(*args))


netG = nn.Sequential(
    nn.Linear(latent, 256 * 4 * 4), nn.Unflatten(1, (256, 4, 4)),
    Up(256, 256), Up(256, 128), Up(128, 64), Up(64, 48), Up(48, 32),
    nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 3, 3, 1, 1), nn.Tanh(),
).to(device)  # fmt: skip
netD = nn.Sequential(
    sn_conv(3, 48, 3, 1, 1), nn.LeakyReLU(0.2), sn_conv(48, 64, 4, 2, 1), nn.LeakyReLU(0.2),
    sn_conv(64, 128, 4, 2, 1), nn.LeakyReLU(0.2), sn_conv(128, 256, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Flatten(), spectral_norm(nn.Linear(256 * 16 * 16, 1)),
).to(device)  # fmt: skip
optG = torch.optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
optD = torch.optim.Adam(netD.parameters(), lr=4e-4, betas=(0.0, 0.9))

for i in range(3):
    real = torch.rand(batch_size, 3, 128, 128, device=device) * 2 - 1

    optD.zero_grad()
    with torch.no_grad():
        fake = netG(torch.randn(batch_size, latent, device=device))
    errD = F.relu(1 - netD(real)).mean() + F.relu(1 + netD(fake)).mean()
    errD.backward()
    optD.step()

    optG.zero_grad()
    errG = -netD(netG(torch.randn(batch_size, latent, device=device))).mean()
    errG.backward()
    optG.step()
    print(f"[{i}] D {errD.item():.3f} G {errG.item():.3f}")
