"""Drum loops by a small RAVE: PQMF bands, a variational autoencoder, spectral distances, a multi-scale critic with an R1 penalty."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

NUM_STEPS = int(os.environ.get("JOB_STEPS", "5"))
BANDS, TAPS, SAMPLES, BATCH = 16, 256, 65536, 16


def pqmf_filters():
    """A cosine-modulated bank from a Kaiser window; good enough for a sketch."""
    n = torch.arange(TAPS) - (TAPS - 1) / 2
    cut = 1 / (2 * BANDS)
    prototype = torch.sinc(n * cut) * cut * torch.kaiser_window(TAPS, False, 9.0)
    k = torch.arange(BANDS)[:, None]
    phase = (2 * k + 1) * math.pi / (2 * BANDS) * n + (-1) ** k * math.pi / 4
    return (2 * prototype * torch.cos(phase))[:, None] * math.sqrt(BANDS)


class Residual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.LeakyReLU(0.2),
            weight_norm(nn.Conv1d(c, c, 3, padding=dilation, dilation=dilation)),
            nn.LeakyReLU(0.2),
            weight_norm(nn.Conv1d(c, c, 1)),
        )

    def forward(self, x):
        return x + self.net(x)


class Rave(nn.Module):
    def __init__(self, base=96, latent=64, ratios=(4, 4, 2, 2)):
        super().__init__()
        self.register_buffer("bank", pqmf_filters())
        layers, c = [nn.Conv1d(BANDS, base, 7, padding=3)], base
        for r in ratios:
            layers += [Residual(c, 1), Residual(c, 3), nn.LeakyReLU(0.2)]
            layers += [nn.Conv1d(c, min(2 * c, 512), 2 * r, r, r // 2)]
            c = min(2 * c, 512)
        layers += [nn.LeakyReLU(0.2), nn.Conv1d(c, 2 * latent, 3, padding=1)]
        self.encoder = nn.Sequential(*layers)
        layers = [weight_norm(nn.Conv1d(latent, c, 7, padding=3))]
        for i, r in enumerate(reversed(ratios)):
            out = base * 2 ** max(0, len(ratios) - 2 - i)
            layers += [nn.LeakyReLU(0.2), weight_norm(nn.ConvTranspose1d(c, out, 2 * r, r, r // 2))]
            layers += [Residual(out, 1), Residual(out, 3), Residual(out, 9)]
            c = out
        self.decoder = nn.Sequential(*layers, nn.LeakyReLU(0.2))
        self.wave = nn.Conv1d(c, BANDS, 7, padding=3)
        self.loud = nn.Conv1d(c, BANDS, 3, padding=1)

    def analyse(self, x):
        return F.conv1d(F.pad(x, (TAPS // 2 - 1, TAPS // 2)), self.bank, stride=BANDS)[
            ..., : SAMPLES // BANDS
        ]

    def synthesise(self, bands):
        y = F.conv_transpose1d(bands, self.bank, stride=BANDS)
        return y[..., TAPS // 2 - 1 :][..., :SAMPLES]

    def forward(self, x):
        mean, scale = self.encoder(self.analyse(x)).chunk(2, 1)
        std = F.softplus(scale) + 1e-4
        kl = (mean.square() + std.square() - 2 * std.log() - 1).sum(1).mean()
        h = self.decoder(mean + std * torch.randn_like(std))
        bands = torch.tanh(self.wave(h)) * torch.sigmoid(self.loud(h))
        return self.synthesise(bands), kl


class Critic(nn.Module):
    def __init__(self, base=24, scales=3):
        super().__init__()
        self.parts = nn.ModuleList()
        for _ in range(scales):
            convs, c = [nn.Conv1d(1, base, 15, padding=7)], base
            for _ in range(4):
                convs.append(nn.Conv1d(c, 4 * c if c < 384 else c, 41, 4, 20, groups=c // 8))
                c = convs[-1].out_channels
            convs.append(nn.Conv1d(c, 1, 3, padding=1))
            self.parts.append(nn.ModuleList(convs))

    def forward(self, x):
        scores, features = [], []
        for i, convs in enumerate(self.parts):
            h = F.avg_pool1d(x, 2**i) if i else x
            for conv in convs[:-1]:
                h = F.leaky_relu(conv(h), 0.2)
                features.append(h)
            scores.append(convs[-1](h))
        return scores, features


def spectral(a, b):
    loss = 0.0
    for size in (2048, 1024, 512, 256, 128):
        window = torch.hann_window(size, device=a.device)
        x, y = (
            torch.stft(t.squeeze(1), size, size // 4, window=window, return_complex=True).abs()
            for t in (a, b)
        )
        loss = loss + (x - y).norm() / y.norm() + F.l1_loss((x + 1e-5).log(), (y + 1e-5).log())
    return loss


def loops(generator):
    time = torch.arange(SAMPLES, device="cuda") / 44100
    start = torch.rand(BATCH, 8, 1, generator=generator, device="cuda") * 1.4
    since = (time - start).clamp(min=0)
    pitch = 50 + 200 * torch.rand(BATCH, 8, 1, generator=generator, device="cuda")
    hits = (since > 0) * torch.exp(-12 * since) * torch.sin(6.283 * pitch * since)
    return hits.sum(1, keepdim=True) / 4 + 0.001 * torch.randn(BATCH, 1, SAMPLES, device="cuda")


def main():
    torch.manual_seed(44)
    generator = torch.Generator("cuda").manual_seed(44)
    rave, critic = Rave().cuda(), Critic().cuda()
    opt_g = torch.optim.Adam(rave.parameters(), 1e-4, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.5, 0.9))
    for step in range(NUM_STEPS):
        x = loops(generator)
        # critic: hinge, and the squared slope at the real loops
        with torch.no_grad():
            y, _ = rave(x)
        x.requires_grad_(True)
        real, _ = critic(x)
        fake, _ = critic(y)
        hinge = sum(F.relu(1 - r).mean() + F.relu(1 + f).mean() for r, f in zip(real, fake))
        (slope,) = torch.autograd.grad(sum(r.sum() for r in real), x, create_graph=True)
        r1 = slope.square().sum((1, 2)).mean()
        opt_c.zero_grad(set_to_none=True)
        (hinge + 5.0 * r1).backward()
        opt_c.step()
        x = x.detach()

        # generator: spectra, features, the critic's opinion
        critic.requires_grad_(False)
        y, kl = rave(x)
        fake, inner = critic(y)
        with torch.no_grad():
            _, wanted = critic(x)
        match = sum(F.l1_loss(a, b) for a, b in zip(inner, wanted)) / len(inner)
        distance = spectral(y, x)
        loss = distance + 10 * match - sum(f.mean() for f in fake) + 1e-2 * kl
        opt_g.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(rave.parameters(), 10.0)
        opt_g.step()
        critic.requires_grad_(True)
        print(
            f"{step}: spectral {distance.item():.3f} match {match.item():.3f} kl {kl.item():.2f}"
            f" hinge {hinge.item():.3f} r1 {r1.item():.4f}"
        )


main()
