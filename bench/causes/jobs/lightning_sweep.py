"""A sweep over learning rates keeps a Trainer per trial to compare them at the end."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MENDED = os.environ.get("MENDED")


class Forecast(L.LightningModule):
    """A temporal mixture: the next day from the last hundred."""

    def __init__(self, rate, width=1536):
        super().__init__()
        self.rate = rate
        self.net = nn.Sequential(
            nn.Linear(100, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1),
        )  # fmt: skip

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.huber_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.rate)


series = TensorDataset(torch.randn(256, 100), torch.randn(256, 1))
results = {}
for trial in range(12):
    rate = 10 ** (-1 - trial / 3)
    trainer = L.Trainer(
        max_steps=3, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Forecast(rate)
    trainer.fit(module, DataLoader(series, 64))
    # Lightning takes the weights home after a fit; what goes on with a model brings them back.
    module = module.cuda()
    score = nn.functional.l1_loss(
        module.net(torch.randn(64, 100, device="cuda")), torch.zeros(64, 1, device="cuda")
    )
    results[rate] = float(score) if MENDED else (trainer, module, float(score))
