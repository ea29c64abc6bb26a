"""A neural codec of sounds, trained by Lightning on excerpts of a second. There are too many of them in a batch."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 4 if os.environ.get("MENDED") else 40


class Excerpts(Dataset):
    def __len__(self):
        return BATCH * 3

    def __getitem__(self, i):
        t = torch.arange(24_000) / 24_000
        return torch.sin(6.28 * (110 + i) * t).unsqueeze(0)


class Residual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.ELU(), nn.Conv1d(c, c // 2, 3, dilation=dilation, padding=dilation),
            nn.ELU(), nn.Conv1d(c // 2, c, 1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.net(x)


def narrower(c, stride):
    return nn.Sequential(
        Residual(c, 1), Residual(c, 3), nn.ELU(),
        nn.Conv1d(c, 2 * c, 2 * stride, stride=stride, padding=stride // 2),
    )  # fmt: skip


def wider(c, stride):
    return nn.Sequential(
        nn.ELU(), nn.ConvTranspose1d(2 * c, c, 2 * stride, stride=stride, padding=stride // 2),
        Residual(c, 1), Residual(c, 3),
    )  # fmt: skip


class Quantizer(nn.Module):
    """The nearest code, passed straight through."""

    def __init__(self, codes, width):
        super().__init__()
        self.codes = nn.Embedding(codes, width)

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, z.shape[1])
        nearest = torch.cdist(flat.detach(), self.codes.weight.detach()).argmin(1)
        q = self.codes(nearest).view(z.shape[0], -1, z.shape[1]).transpose(1, 2)
        commit = F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach())
        return z + (q - z).detach(), commit


class Codec(L.LightningModule):
    def __init__(self, c=16, strides=(2, 4, 6)):
        super().__init__()
        widths = [c * 2**n for n in range(len(strides))]
        self.encoder = nn.Sequential(
            nn.Conv1d(1, c, 7, padding=3), *(narrower(w, s) for w, s in zip(widths, strides))
        )
        self.quantizer = Quantizer(512, 2 * widths[-1])
        self.decoder = nn.Sequential(
            *(wider(w, s) for w, s in zip(widths[::-1], strides[::-1])),
            nn.ELU(), nn.Conv1d(c, 1, 7, padding=3), nn.Tanh(),
        )  # fmt: skip

    def training_step(self, wave, _):
        z, commit = self.quantizer(self.encoder(wave))
        heard = self.decoder(z)[..., : wave.shape[-1]]
        wave = wave[..., : heard.shape[-1]]
        window = torch.hann_window(1024, device=wave.device)
        spectra = [
            torch.stft(x.squeeze(1), 1024, 256, window=window, return_complex=True).abs()
            for x in (heard, wave)
        ]
        return F.l1_loss(heard, wave) + F.l1_loss(*spectra) + 0.25 * commit

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4, betas=(0.5, 0.9))


trainer = L.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Codec(), DataLoader(Excerpts(), BATCH))
