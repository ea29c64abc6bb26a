"""Hourly rentals of scooters at many stands: DeepAR (an LSTM with a negative binomial output) in Lightning, with a data module."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONTEXT, AHEAD, STANDS = 24 * 14, 48, 3000


class Rentals(Dataset):
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        stand = torch.randint(STANDS, (), generator=g)
        hour = torch.randint(24 * 7, (1,), generator=g) + torch.arange(CONTEXT + AHEAD + 1)
        rate = torch.exp(
            1.5 + torch.sin(2 * torch.pi * hour / 24) + 0.3 * torch.randn(1, generator=g)
        )
        counts = torch.poisson(rate, generator=g)
        weather = torch.randn(len(hour), 2, generator=g).cumsum(0) / 20
        day = torch.stack(
            [f(2 * torch.pi * hour / p) for p in (24, 168) for f in (torch.sin, torch.cos)], -1
        )
        return {"stand": stand, "counts": counts, "covariates": torch.cat([day, weather], -1)}


class RentalsModule(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.train = Rentals(5 * self.batch_size, 0)
        self.valid = Rentals(self.batch_size, 1_000_000)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.valid, self.batch_size)


class DeepAR(L.LightningModule):
    def __init__(self, hidden=640, layers=3, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(STANDS, 64)
        self.lstm = nn.LSTM(1 + 6 + 64 + 1, hidden, layers, dropout=0.1, batch_first=True)
        self.mean = nn.Linear(hidden, 1)
        self.shape = nn.Linear(hidden, 1)

    def forward(self, batch, state=None):
        counts = batch["counts"]
        scale = 1 + counts[:, :CONTEXT].mean(1, keepdim=True)
        static = torch.cat([self.embed(batch["stand"]), scale.log()], -1)
        steps = counts.shape[1] - 1
        x = torch.cat(
            [
                (counts[:, :-1] / scale).unsqueeze(-1),
                batch["covariates"][:, 1:],
                static.unsqueeze(1).expand(-1, steps, -1),
            ],
            -1,
        )
        h, state = self.lstm(x, state)
        mu = F.softplus(self.mean(h).squeeze(-1)) * scale + 1e-4
        alpha = F.softplus(self.shape(h).squeeze(-1)) / scale.sqrt() + 1e-4
        return mu, alpha, state

    def likelihood(self, mu, alpha, y):
        r = 1 / alpha
        return (
            torch.lgamma(y + r) - torch.lgamma(y + 1) - torch.lgamma(r)
            - r * torch.log1p(alpha * mu) + y * (torch.log(alpha * mu) - torch.log1p(alpha * mu))
        )  # fmt: skip

    def training_step(self, batch, index):
        mu, alpha, _ = self(batch)
        loss = -self.likelihood(mu, alpha, batch["counts"][:, 1:]).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        mu, alpha, _ = self(batch)
        target = batch["counts"][:, -AHEAD:]
        error = (mu[:, -AHEAD:] - target).abs().sum() / target.sum()
        nll = -self.likelihood(mu[:, -AHEAD:], alpha[:, -AHEAD:], target).mean()
        self.log_dict({"val_nd": error, "val_nll": nll})

    def on_train_batch_end(self, outputs, batch, index):
        print(f"step {self.global_step} loss {outputs['loss'].item():.4f}")

    def on_validation_epoch_end(self):
        print(
            "validation", {k: round(v.item(), 4) for k, v in self.trainer.callback_metrics.items()}
        )

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(29)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=10.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DeepAR(), datamodule=RentalsModule(batch_size=256))


if __name__ == "__main__":
    main()
