"""Where road users go next, from all pairs of them, in Lightning. One scene is a square at rush hour."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MOST = 64 if os.environ.get("MENDED") else None


class Scenes(Dataset):
    users = [12, 30, 25, 8, 40, 17, 33, 1300, 21, 14, 28]

    def __len__(self):
        return len(self.users)

    def __getitem__(self, n):
        tracks = torch.randn(self.users[n], 20, 2)[:MOST]
        return tracks[:, :12], tracks[:, 12:]


class Crowd(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.past = nn.GRU(2, width, batch_first=True)
        self.pair = nn.Sequential(
            nn.Linear(2 * width + 2, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, width),
        )
        self.future = nn.Linear(2 * width, 16)

    def forward(self, past):
        n = len(past)
        h = self.past(past)[1][0]
        apart = past[:, None, -1] - past[None, :, -1]
        pairs = torch.cat([h[:, None].expand(n, n, -1), h[None].expand(n, n, -1), apart], -1)
        return self.future(torch.cat([h, self.pair(pairs).amax(1)], -1)).view(n, 8, 2)

    def training_step(self, scene, index):
        past, future = scene
        return (self(past) - future).norm(dim=-1).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Crowd(), DataLoader(Scenes(), batch_size=None))
