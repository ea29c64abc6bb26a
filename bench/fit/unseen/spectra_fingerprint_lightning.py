"""From a tandem mass spectrum to the fingerprint of the molecule: a set transformer over peaks, in Lightning.

Peaks have no order, so: m/z by sinusoids, inducing points (ISAB), pooling by attention (PMA), 4096 bits out.
"""

import math
from typing import NamedTuple

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

BITS = 4096
MAX_PEAKS = 256


class Spectra(NamedTuple):
    mz: torch.Tensor
    intensity: torch.Tensor
    padding: torch.Tensor  # True where there is no peak
    precursor: torch.Tensor
    bits: torch.Tensor


class MAB(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.ln0 = nn.LayerNorm(dim)
        self.ln1 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, q, kv, padding=None):
        a, _ = self.attn(q, kv, kv, key_padding_mask=padding, need_weights=False)
        h = self.ln0(q + a)
        return self.ln1(h + self.ff(h))


class ISAB(nn.Module):
    def __init__(self, dim, heads, points):
        super().__init__()
        self.inducing = nn.Parameter(torch.randn(1, points, dim) * 0.02)
        self.squeeze = MAB(dim, heads)
        self.spread = MAB(dim, heads)

    def forward(self, x, padding):
        i = self.inducing.expand(len(x), -1, -1)
        return self.spread(x, self.squeeze(i, x, padding))


class PeakEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        wavelengths = torch.logspace(math.log10(1e-2), math.log10(1000), dim // 2)
        self.register_buffer("omega", 2 * math.pi / wavelengths)
        self.mix = nn.Sequential(nn.Linear(dim + 1, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, mz, intensity):
        phase = mz[..., None] * self.omega
        return self.mix(torch.cat([phase.sin(), phase.cos(), intensity[..., None]], -1))


class FingerprintModel(L.LightningModule):
    def __init__(self, dim=384, heads=6, layers=5, points=48, lr=5e-4, warmup=4):
        super().__init__()
        self.save_hyperparameters()
        self.embed = PeakEmbedding(dim)
        self.blocks = nn.ModuleList(ISAB(dim, heads, points) for _ in range(layers))
        self.seeds = nn.Parameter(torch.randn(1, 4, dim) * 0.02)
        self.pool = MAB(dim, heads)
        self.head = nn.Sequential(
            nn.Linear(4 * dim + 1, 2048), nn.GELU(), nn.Dropout(0.3), nn.Linear(2048, BITS)
        )

    def forward(self, s: Spectra):
        x = self.embed(s.mz, s.intensity)
        for block in self.blocks:
            x = block(x, s.padding)
        pooled = self.pool(self.seeds.expand(len(x), -1, -1), x, s.padding)
        return self.head(torch.cat([pooled.flatten(1), s.precursor[:, None] / 1000], 1))

    def focal(self, logits, target, gamma=2.0):
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p = torch.exp(-ce)
        return ((1 - p) ** gamma * ce).mean()

    def training_step(self, batch: Spectra, _):
        loss = self.focal(self(batch).float(), batch.bits)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Spectra, _):
        guess = torch.sigmoid(self(batch)) > 0.3
        truth = batch.bits.bool()
        tanimoto = (guess & truth).sum(1) / (guess | truth).sum(1).clamp(min=1)
        self.log("tanimoto", tanimoto.mean(), batch_size=len(truth))

    def configure_optimizers(self):
        opt = torch.optim.RAdam(self.parameters(), lr=self.hparams.lr, weight_decay=1e-5)
        ramp = torch.optim.lr_scheduler.LambdaLR(
            opt, lambda n: min(1.0, (n + 1) / self.hparams.warmup)
        )
        return [opt], [{"scheduler": ramp, "interval": "step"}]


class FakeLibrary(Dataset):
    def __init__(self, n, offset=0):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.offset + i)
        weight = 150 + 800 * torch.rand((), generator=g)
        count = int(torch.randint(20, MAX_PEAKS, (), generator=g))
        mz = torch.rand(count, generator=g).sort().values * weight
        intensity = torch.rand(count, generator=g) ** 4
        bits = (torch.rand(BITS, generator=g) < 0.012).float()
        return mz, intensity / intensity.max(), weight, bits


def collate(items):
    n = len(items)
    mz, intensity = torch.zeros(n, MAX_PEAKS), torch.zeros(n, MAX_PEAKS)
    padding = torch.ones(n, MAX_PEAKS, dtype=torch.bool)
    for row, (m, i, *_) in enumerate(items):
        mz[row, : len(m)], intensity[row, : len(m)], padding[row, : len(m)] = m, i, False
    return Spectra(
        mz,
        intensity,
        padding,
        torch.stack([x[2] for x in items]),
        torch.stack([x[3] for x in items]),
    )


class Library(L.LightningDataModule):
    def __init__(self, batch, train, val):
        super().__init__()
        self.batch, self.sizes = batch, (train, val)

    def setup(self, stage):
        self.train_set = FakeLibrary(self.sizes[0])
        self.val_set = FakeLibrary(self.sizes[1], offset=10**6)

    def train_dataloader(self):
        return DataLoader(
            self.train_set, self.batch, shuffle=True, collate_fn=collate, drop_last=True
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch, collate_fn=collate)


class GradNorms(L.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        norms = [p.grad.norm() for p in module.parameters() if p.grad is not None]
        print(trainer.global_step, "grad norm", torch.stack(norms).norm().item())


if __name__ == "__main__":
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[GradNorms()],
    )
    trainer.fit(FingerprintModel(), datamodule=Library(batch=192, train=192 * 12, val=192))
    print(trainer.callback_metrics)
