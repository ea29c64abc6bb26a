"""A Lightning module writes music in tokens of a very large vocabulary, with smoothed labels."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKENS = 96_000
PART = 64 if os.environ.get("MENDED") else None


class Melodies(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, n):
        return torch.randint(0, TOKENS, (769,), generator=torch.Generator().manual_seed(n))


class Composer(L.LightningModule):
    def __init__(self, width=256):
        super().__init__()
        self.notes = nn.Embedding(TOKENS, width)
        self.body = nn.LSTM(width, width, 2, batch_first=True)
        self.out = nn.Linear(width, TOKENS)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.automatic_optimization = False

    def training_step(self, melodies, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        hidden, _ = self.body(self.notes(melodies[:, :-1]))
        if PART:
            cut = hidden.detach().requires_grad_()
            for h, t in zip(cut.split(PART, 1), melodies[:, 1:].split(PART, 1)):
                self.manual_backward(self.loss(self.out(h).mT, t))
            hidden.backward(cut.grad)
        else:
            self.manual_backward(self.loss(self.out(hidden).mT, melodies[:, 1:]))
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.01)


L.Trainer(
    max_steps=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Composer(), DataLoader(Melodies(), 4))  # fmt: skip
