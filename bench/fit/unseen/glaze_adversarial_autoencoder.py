"""Adversarial autoencoder for pottery glaze photographs: reconstruction, prior matching and an image critic.

Three optimizers; the generator's loss runs through the critic as well as the encoder.
"""

import argparse
import itertools
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Glazes(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size
        ys = torch.linspace(-1, 1, size)
        self.grid = torch.stack(torch.meshgrid(ys, ys, indexing="ij"))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        f = torch.rand(3, 2, generator=g) * 20
        phase = (f[:, :, None, None] * self.grid[None]).sum(1)
        return torch.sin(phase)


def down(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True)
    )


def up(i, o):
    return nn.Sequential(
        nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)
    )


class Encoder(nn.Module):
    def __init__(self, ch, z):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, ch, 3, 1, 1),
            nn.LeakyReLU(0.2, True),
            down(ch, ch * 2),
            down(ch * 2, ch * 4),
            down(ch * 4, ch * 8),
            down(ch * 8, ch * 8),
        )
        self.out = nn.Linear(ch * 8 * 64, z)

    def forward(self, x):
        return self.out(self.body(x).flatten(1))


class Decoder(nn.Module):
    def __init__(self, ch, z):
        super().__init__()
        self.ch = ch
        self.inp = nn.Linear(z, ch * 8 * 64)
        self.body = nn.Sequential(
            up(ch * 8, ch * 8),
            up(ch * 8, ch * 4),
            up(ch * 4, ch * 2),
            up(ch * 2, ch),
            nn.Conv2d(ch, 3, 3, 1, 1),
        )

    def forward(self, z):
        return torch.tanh(self.body(self.inp(z).view(-1, self.ch * 8, 8, 8)))


class Critic(nn.Module):
    def __init__(self, ch):
        super().__init__()
        sn = nn.utils.spectral_norm
        self.layers = nn.ModuleList(
            [
                sn(nn.Conv2d(3, ch, 5, 2, 2)),
                sn(nn.Conv2d(ch, ch * 2, 5, 2, 2)),
                sn(nn.Conv2d(ch * 2, ch * 4, 5, 2, 2)),
            ]
        )
        self.score = sn(nn.Conv2d(ch * 4, 1, 1))

    def forward(self, x):
        feats = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            feats.append(x)
        return self.score(x), feats


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=128)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--ch", type=int, default=64)
    ap.add_argument("--latent", type=int, default=256)
    ap.add_argument("--iters", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "glaze"))
    opt = ap.parse_args()
    os.makedirs(opt.out, exist_ok=True)
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"

    enc, dec = Encoder(opt.ch, opt.latent).to(dev), Decoder(opt.ch, opt.latent).to(dev)
    critic = Critic(opt.ch).to(dev)
    prior = nn.Sequential(
        nn.Linear(opt.latent, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(dev)
    opt_ae = torch.optim.Adam(
        itertools.chain(enc.parameters(), dec.parameters()), lr=opt.lr, betas=(0.5, 0.999)
    )
    opt_critic = torch.optim.Adam(critic.parameters(), lr=opt.lr * 2, betas=(0.0, 0.9))
    opt_prior = torch.optim.RMSprop(prior.parameters(), lr=opt.lr)
    loader = DataLoader(
        Glazes(opt.batch * opt.iters, opt.size), batch_size=opt.batch, num_workers=2, drop_last=True
    )
    bce = nn.BCEWithLogitsLoss()

    for it, real in enumerate(loader):
        real = real.to(dev, non_blocking=True)
        ones, zeros = torch.ones(len(real), 1, device=dev), torch.zeros(len(real), 1, device=dev)
        # 1. the critic of images
        with torch.no_grad():
            fake = dec(enc(real))
        s_real, _ = critic(real)
        s_fake, _ = critic(fake)
        loss_c = F.relu(1 - s_real).mean() + F.relu(1 + s_fake).mean()
        opt_critic.zero_grad(set_to_none=True)
        loss_c.backward()
        opt_critic.step()
        # 2. the critic of codes
        with torch.no_grad():
            z = enc(real)
        loss_p = bce(prior(torch.randn_like(z)), ones) + bce(prior(z), zeros)
        opt_prior.zero_grad(set_to_none=True)
        loss_p.backward()
        opt_prior.step()
        # 3. the autoencoder, through both
        z = enc(real)
        rec = dec(z)
        s, f_fake = critic(rec)
        with torch.no_grad():
            _, f_real = critic(real)
        feat = sum(F.l1_loss(a, b) for a, b in zip(f_fake, f_real))
        loss = 10 * F.l1_loss(rec, real) + feat - s.mean() + 0.1 * bce(prior(z), ones)
        opt_ae.zero_grad(set_to_none=True)
        loss.backward()
        opt_ae.step()
        print(
            f"[{it}] ae {loss.item():.3f} critic {loss_c.item():.3f} prior {loss_p.item():.3f}",
            flush=True,
        )
        if (it + 1) % 6 == 0:
            torch.save(
                {"enc": enc.state_dict(), "dec": dec.state_dict(), "opt": opt_ae.state_dict()},
                os.path.join(opt.out, "last.pt"),
            )


if __name__ == "__main__":
    main()
