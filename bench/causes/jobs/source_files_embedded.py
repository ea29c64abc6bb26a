"""Code search: source files and their descriptions into one space."""

import os
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MENDED = os.environ.get("MENDED")
VOCAB = 30000


class Repository(Dataset):
    """Pairs of a file's tokens and a description's."""

    def __init__(self):
        rng = random.Random(3)
        self.lengths = [rng.randint(150, 900) for _ in range(24 * 12)]
        self.lengths[24 * 8 + 5] = 11_400  # vendor/jquery.min.js

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        code = torch.randint(1, VOCAB, (self.lengths[i],))
        if MENDED:
            code = code[:1024]
        return code, torch.randint(1, VOCAB, (24,))


def collate(rows):
    codes, texts = zip(*rows)
    return pad_sequence(codes, batch_first=True), torch.stack(texts)


class Encoder(nn.Module):
    def __init__(self, width=256, depth=5):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 5, padding=2) for _ in range(depth))

    def forward(self, ids):
        x = self.words(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + F.glu(conv(x), dim=1)
        return F.normalize(x.mean(-1), dim=-1)


def main():
    code_encoder, text_encoder = Encoder().cuda(), Encoder(depth=2).cuda()
    params = [*code_encoder.parameters(), *text_encoder.parameters()]
    optimizer = torch.optim.Adam(params, lr=2e-4)
    for code, text in DataLoader(Repository(), batch_size=24, collate_fn=collate):
        a, b = code_encoder(code.cuda()), text_encoder(text.cuda())
        scores = a @ b.T / 0.05
        target = torch.arange(len(a), device="cuda")
        loss = (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
