"""What does a reader click next? Histories are padded to the longest of the batch; one reader is a crawler."""

import os

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

LIMIT = 100 if os.environ.get("MENDED") else None  # clicks of one reader that count


class Clicks(Dataset):
    def __init__(self, readers=256 * 8, items=50_000):
        g = torch.Generator().manual_seed(11)
        self.items = items
        self.lengths = torch.randint(5, 80, (readers,), generator=g).tolist()
        self.lengths[256 * 5 + 17] = 6000

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        history = torch.arange(self.lengths[i]).mul(i + 7).remainder(self.items - 1).add(1)
        return history[-LIMIT:] if LIMIT else history, i % self.items, float(i % 2)


def collate(rows):
    histories, candidates, clicked = zip(*rows)
    return pad_sequence(histories, True), torch.tensor(candidates), torch.tensor(clicked)


class DeepInterest(nn.Module):
    """Each earlier click is weighed by how much it says about the candidate."""

    def __init__(self, items, d=32):
        super().__init__()
        self.item = nn.Embedding(items, d, padding_idx=0)
        self.weigh = nn.Sequential(nn.Linear(4 * d, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1))  # fmt: skip
        self.top = nn.Sequential(nn.Linear(2 * d, 64), nn.PReLU(), nn.Linear(64, 1))

    def forward(self, history, candidate):
        h, c = self.item(history), self.item(candidate)
        cc = c.unsqueeze(1).expand_as(h)
        w = self.weigh(torch.cat([h, cc, h - cc, h * cc], -1)) * (history > 0).unsqueeze(-1)
        return self.top(torch.cat([(w * h).sum(1), c], -1)).squeeze(-1)


data = Clicks()
model = DeepInterest(data.items).cuda()
opt = torch.optim.Adam(model.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
for history, candidate, clicked in DataLoader(data, 256, collate_fn=collate):
    loss = bce(model(history.cuda(), candidate.cuda()), clicked.cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
