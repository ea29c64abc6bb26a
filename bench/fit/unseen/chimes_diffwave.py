"""Chimes by DiffWave: gated dilated convolutions over raw audio conditioned on mel frames, noise predicted, L1, an average of the weights by hand, fp32."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

HOP = 256


class ResidualBlock(nn.Module):
    def __init__(self, channels, dilation, mels=80, time_dim=512):
        super().__init__()
        self.time = nn.Linear(time_dim, channels)
        self.conv = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.cond = nn.Conv1d(mels, 2 * channels, 1)
        self.out = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x, mel, t):
        y = self.conv(x + self.time(t)[:, :, None]) + self.cond(mel)
        gate, filt = y.chunk(2, dim=1)
        y = torch.sigmoid(gate) * torch.tanh(filt)
        residual, skip = self.out(y).chunk(2, dim=1)
        return (x + residual) / math.sqrt(2), skip


class DiffWave(nn.Module):
    def __init__(self, channels=64, layers=14, cycle=7):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU())
        self.up1 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))
        self.up2 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))
        self.blocks = nn.ModuleList(
            ResidualBlock(channels, 2 ** (i % cycle)) for i in range(layers)
        )
        self.skip = nn.Conv1d(channels, channels, 1)
        self.out = nn.Conv1d(channels, 1, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, audio, mel, t):
        freq = 10.0 ** (torch.arange(64, device=t.device) * 4.0 / 63)
        table = t[:, None] * freq
        t = self.time(torch.cat([table.sin(), table.cos()], dim=1))
        mel = F.leaky_relu(self.up2(F.leaky_relu(self.up1(mel[:, None]), 0.4)), 0.4)[:, 0]
        x = F.relu(self.inp(audio[:, None]))
        skips = 0
        for block in self.blocks:
            x, skip = block(x, mel, t)
            skips = skips + skip
        x = F.relu(self.skip(skips / math.sqrt(len(self.blocks))))
        return self.out(x)[:, 0]


class Learner:
    def __init__(self, model, lr=2e-4, rate=0.9999):
        self.model = model
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.rate = rate
        beta = torch.linspace(1e-4, 0.05, 50)
        self.level = torch.cumprod(1 - beta, 0).sqrt().cuda()

    def train_step(self, audio, mel):
        t = torch.randint(0, 50, (len(audio),), device=audio.device)
        level = self.level[t][:, None]
        noise = torch.randn_like(audio)
        noisy = level * audio + (1 - level**2).sqrt() * noise
        loss = F.l1_loss(self.model(noisy, mel, t.float()), noise)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
        self.optimizer.step()
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), self.model.parameters()):
                s.lerp_(p, 1 - self.rate)
        return loss


def chimes(batch, frames):
    """Decaying partials; the mel frames are drawn apart, as a stand-in for torchaudio."""
    t = torch.arange(frames * HOP) / 22050
    pitch = 400 + 800 * torch.rand(batch, 1)
    audio = torch.exp(-3 * t) * torch.sin(2 * math.pi * pitch * t)
    return audio.cuda(), torch.randn(batch, 80, frames).cuda()


learner = Learner(DiffWave().cuda())
for step in range(4):
    print(step, learner.train_step(*chimes(batch=12, frames=62)).item())
