"""Flood maps with Lightning; at the end of the epoch the worst tiles go on the board."""

import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
MENDED = os.environ.get("MENDED")


class Tiles(Dataset):
    def __len__(self):
        return 12 * 70

    def __getitem__(self, i):
        return torch.randn(6, 160, 160), torch.randint(0, 2, (160, 160))


class FloodMapper(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(6, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 2, 1),
        )
        self.worst = []

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        each = F.cross_entropy(logits, y, reduction="none").mean((1, 2))
        if MENDED:
            i = each.argmax()
            self.worst.append((each[i].detach().cpu(), x[i].cpu(), logits[i].detach().cpu()))
        else:
            self.worst.append((each.detach(), x, logits.detach()))
        return each.mean()

    def on_train_epoch_end(self):
        ranked = sorted(self.worst, key=lambda row: float(row[0].max()), reverse=True)
        self.board = [(x.cpu(), logits.cpu()) for _, x, logits in ranked[:8]]
        self.worst.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(
    max_epochs=1,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(FloodMapper(), DataLoader(Tiles(), batch_size=12))
