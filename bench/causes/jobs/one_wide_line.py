"""A reader of handwriting: lines of text as pictures, one at a time; one is a whole scroll."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class CRNN(nn.Module):
    def __init__(self, signs=90):
        super().__init__()
        layers, c = [], 1
        for width, pool in ((64, (2, 2)), (128, (2, 2)), (256, (2, 1)), (256, (2, 1))):
            layers += [nn.Conv2d(c, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
            layers.append(nn.MaxPool2d(pool))
            c = width
        self.seen = nn.Sequential(*layers)
        self.read = nn.LSTM(256 * 4, 192, bidirectional=True)
        self.sign = nn.Linear(384, signs)

    def forward(self, line):
        x = self.seen(line).permute(3, 0, 1, 2).flatten(2)
        return self.sign(self.read(x)[0]).log_softmax(-1)


crnn = CRNN().cuda()
optimizer = torch.optim.Adadelta(crnn.parameters())
widths = [900, 1100, 1000, 1200 if MENDED else 46_000, 950, 1050]
for width in widths:
    line = torch.rand(1, 1, 64, width, device="cuda")
    scores = crnn(line)
    text = torch.randint(1, 90, (1, 40))
    loss = nn.functional.ctc_loss(scores, text, (len(scores),), (40,), zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
