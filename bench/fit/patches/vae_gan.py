import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, z=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(128, 256, 4, 2, 1),
            nn.SiLU(),
        )
        self.out = nn.Linear(256 * 8 * 8, 2 * z)

    def forward(self, x):
        return self.out(self.net(x).flatten(1)).chunk(2, 1)


class Decoder(nn.Module):
    def __init__(self, z=64):
        super().__init__()
        self.inp = nn.Linear(z, 256 * 8 * 8)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )

    def forward(self, z):
        return torch.sigmoid(self.net(self.inp(z).view(-1, 256, 8, 8)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(128 * 16 * 16, 1),
        )

    def forward(self, x):
        return self.net(x)


def sample(n):
    return torch.rand(n, 3, 64, 64, device="cuda")


enc, dec, critic = Encoder().cuda(), Decoder().cuda(), Critic().cuda()
opt_vae = torch.optim.Adam(list(enc.parameters()) + list(dec.parameters()), lr=2e-4)
opt_d = torch.optim.Adam(critic.parameters(), lr=1e-4)
for it in range(5):
    x = sample(128)
    mu, logvar = enc(x)
    z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
    rec = dec(z)
    d_loss = F.softplus(-critic(x)).mean() + F.softplus(critic(rec.detach())).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
    vae_loss = F.mse_loss(rec, x) + 0.1 * kl + 0.01 * F.softplus(-critic(rec)).mean()
    opt_vae.zero_grad()
    vae_loss.backward()
    opt_vae.step()
