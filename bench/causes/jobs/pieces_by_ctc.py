"""Speech to word pieces, with CTC. A frame may be any of 32 thousand pieces, as somebody took the tokenizer of a language model."""

import os

import torch
import torch.nn.functional as F
from torch import nn

PIECES = 400 if os.environ.get("MENDED") else 32000


class Listener(nn.Module):
    def __init__(self, mels=80, width=320, layers=3, pieces=PIECES):
        super().__init__()
        self.shorten = nn.Sequential(
            nn.Conv1d(mels, width, 3, 2, 1), nn.ReLU(), nn.Conv1d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.rnn = nn.GRU(width, width // 2, layers, batch_first=True, bidirectional=True)
        self.out = nn.Linear(width, pieces + 1)

    def forward(self, mel):
        h, _ = self.rnn(self.shorten(mel).transpose(1, 2))
        return self.out(h)


class Corpus:
    """Batches of spectrograms, and the pieces that were said."""

    def __init__(self, batches, batch=12, frames=1200, said=40):
        self.batches, self.shape, self.said = batches, (batch, 80, frames), said

    def __iter__(self):
        g = torch.Generator().manual_seed(3)
        for _ in range(self.batches):
            mel = torch.randn(self.shape, generator=g)
            yield mel, torch.randint(1, PIECES + 1, (self.shape[0], self.said), generator=g)


def loss_of(model, mel, pieces):
    log_p = F.log_softmax(model(mel), dim=-1).transpose(0, 1)
    frames = torch.full((mel.shape[0],), log_p.shape[0], dtype=torch.long)
    said = torch.full((mel.shape[0],), pieces.shape[1], dtype=torch.long)
    return F.ctc_loss(log_p, pieces, frames, said, zero_infinity=True)


model = Listener().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step, (mel, pieces) in enumerate(Corpus(3)):
    loss = loss_of(model, mel.cuda(), pieces.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
