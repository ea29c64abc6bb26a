"""Twenty thousand genes of a cell are squeezed into thirty numbers, by Lightning and the Adam that everybody takes."""

import os

import lightning as L
import torch
from torch import nn
from torch.distributions import NegativeBinomial, Normal, kl_divergence
from torch.utils.data import DataLoader, Dataset

OPTIMIZER = "sgd" if os.environ.get("MENDED") else "adam"
GENES, LATENT = 20_000, 30


class Cells(Dataset):
    """Counts of transcripts, mostly zero."""

    def __init__(self, count=96):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.poisson(torch.rand(GENES, generator=g).pow(4) * 3, generator=g)


class CellAutoencoder(L.LightningModule):
    def __init__(self, width=1024):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(GENES, width), nn.LayerNorm(width), nn.ReLU(),
            nn.Linear(width, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 2 * LATENT),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 256), nn.LayerNorm(256), nn.ReLU(),
            nn.Linear(256, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, GENES),
        )  # fmt: skip
        self.spread = nn.Parameter(torch.zeros(GENES))

    def forward(self, counts):
        mean, scale = self.encoder(torch.log1p(counts)).chunk(2, -1)
        return Normal(mean, nn.functional.softplus(scale) + 1e-4, validate_args=False)

    def training_step(self, counts, _):
        cell = self(counts)
        rate = self.decoder(cell.rsample()).softmax(-1) * counts.sum(-1, keepdim=True)
        seen = NegativeBinomial(
            self.spread.exp(), logits=(rate + 1e-8).log() - self.spread, validate_args=False
        )
        prior = Normal(torch.zeros_like(cell.loc), 1.0, validate_args=False)
        return -seen.log_prob(counts).sum(-1).mean() + kl_divergence(cell, prior).sum(-1).mean()

    def configure_optimizers(self):
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        return kinds[OPTIMIZER](self.parameters(), lr=1e-4)


def main():
    L.seed_everything(1, verbose=False)
    trainer = L.Trainer(
        max_steps=3, accelerator="gpu", devices=1, gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(CellAutoencoder(), DataLoader(Cells(), 16))


main()
