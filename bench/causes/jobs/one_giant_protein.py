"""Lightning pads proteins to the longest of their batch; one of them is titin."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

LONGEST = 1000 if os.environ.get("MENDED") else None


class Proteins(Dataset):
    lengths = [220 + 37 * (i % 11) for i in range(96)]
    lengths[77] = 34_350

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        chain = torch.randint(1, 21, (self.lengths[i],))[:LONGEST]
        return chain, chain % 3


def collate(chains):
    residues, structure = zip(*chains)
    return pad_sequence(residues, batch_first=True), pad_sequence(
        structure, batch_first=True, padding_value=-100
    )


class SecondaryStructure(L.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(21, width, padding_idx=0)
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 7, padding=3), nn.BatchNorm1d(width), nn.ReLU())
            for _ in range(8)
        )
        self.head = nn.Conv1d(width, 3, 1)

    def training_step(self, batch, _):
        residues, structure = batch
        x = self.embed(residues).transpose(1, 2)
        for conv in self.convs:
            x = x + conv(x)
        return F.cross_entropy(self.head(x), structure)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


trainer = L.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(SecondaryStructure(), DataLoader(Proteins(), batch_size=8, collate_fn=collate))
