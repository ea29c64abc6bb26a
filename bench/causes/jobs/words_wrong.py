"""After training, a recognizer of speech is tested on longer sounds, in eval() but with a graph."""

import os
from contextlib import nullcontext

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Recognizer(nn.Module):
    def __init__(self, width=320, letters=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(80, width, 5, 2, 2), nn.ReLU())
        self.body = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv1d(width, width, 11, padding=5), nn.Hardtanh(0, 20), nn.Dropout(0.1)
                )
                for _ in range(8)
            )
        )
        self.out = nn.Linear(width, letters)

    def forward(self, mel):
        return self.out(self.body(self.stem(mel)).transpose(1, 2)).log_softmax(-1)


def train(model, steps):
    optimizer, ctc = torch.optim.SGD(model.parameters(), 1e-3, 0.9), nn.CTCLoss()
    model.train()
    for _ in range(steps):
        scores = model(torch.randn(8, 80, 400, device="cuda"))
        words = torch.randint(1, 32, (8, 30))
        loss = ctc(scores.transpose(0, 1), words.cuda(), (200,) * 8, (30,) * 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test(model, batches):
    model.eval()
    wrong = 0
    for _ in range(batches):
        with torch.no_grad() if MENDED else nullcontext():
            best = model(torch.randn(64, 80, 1600, device="cuda")).argmax(-1)
        letters = [torch.unique_consecutive(line) for line in best.cpu()]
        wrong += sum(len(line) for line in letters)
    return wrong


model = Recognizer().cuda()
train(model, 4)
test(model, 2)
