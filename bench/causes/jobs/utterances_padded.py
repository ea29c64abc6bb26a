"""A collate function pads each batch to its longest utterance. One of them is a whole lecture."""

import os
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

random.seed(3)
LONGEST = 1600 if os.environ.get("MENDED") else 10**9


class Utterances(Dataset):
    def __init__(self):
        self.frames = [random.randint(300, 900) for _ in range(96)]
        self.frames[77] = 9000

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, n):
        return torch.randn(min(self.frames[n], LONGEST), 80), n % 10


def collate(batch):
    sounds, labels = zip(*batch)
    return pad_sequence(sounds, batch_first=True), torch.tensor(labels)


class Tdnn(nn.Module):
    """Dilated convolutions over time, then statistics."""

    def __init__(self, width=256):
        super().__init__()
        sizes = ((80, 5, 1), (width, 3, 2), (width, 3, 3), (width, 3, 4), (width, 1, 1))
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(i, width, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(width))
                for i, k, d in sizes
            )
        )
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = self.layers(x.transpose(1, 2))
        return self.out(torch.cat([x.mean(-1), x.std(-1)], 1))


model = Tdnn().cuda()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for sounds, labels in DataLoader(Utterances(), batch_size=8, collate_fn=collate):
    loss = nn.functional.cross_entropy(model(sounds.cuda()), labels.cuda())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
