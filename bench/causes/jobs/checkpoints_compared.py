"""Which of the saved epochs is the best? All files are read first, and each comes back to where it was saved from: the GPU."""

import os
import re
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
EPOCHS = 8


class Composer(nn.Module):
    """Chords that follow on chords."""

    def __init__(self, chords=400, d=1024, layers=4):
        super().__init__()
        self.embed = nn.Embedding(chords, d)
        self.rnn = nn.GRU(d, d, layers, batch_first=True)
        self.out = nn.Linear(d, chords)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])

    def loss(self, ids):
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def songs(count=16, chords=48):
    return torch.randint(0, 400, (count, chords)).cuda()


def train(place):
    model = Composer().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loss = model.loss(songs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), place / f"epoch-{epoch}.pt")


def number(path):
    return int(re.search(r"\d+", path.stem).group())


def compare(place):
    where = "cpu" if MENDED else None
    files = sorted(place.glob("epoch-*.pt"), key=number)
    saved = {number(path): torch.load(path, map_location=where) for path in files}
    model, held_out, losses = Composer().cuda().eval(), songs(), {}
    for epoch, weights in saved.items():
        model.load_state_dict(weights)
        with torch.inference_mode():
            losses[epoch] = model.loss(held_out).item()
    return min(losses, key=losses.get)


with tempfile.TemporaryDirectory() as folder:
    train(Path(folder))
    print("the best epoch is", compare(Path(folder)))
