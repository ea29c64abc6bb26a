"""Captions in all languages at once: half-precision scores over 150,000 word pieces are made single for the loss."""

import os

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PIECES = 150_000
device = torch.device("cuda")


class Captioner(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.eye = timm.create_model("resnet10t", num_classes=width)
        self.word = nn.Embedding(PIECES, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, PIECES, bias=False)
        self.out.weight = self.word.weight

    def forward(self, image, words):
        h, _ = self.rnn(self.word(words), self.eye(image)[None].float())
        return h

    def part(self, h, target):
        return F.cross_entropy(self.out(h).float(), target, reduction="sum")


model = Captioner().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for it in range(3):
    image = torch.randn(64, 3, 64, 64, device=device)
    caption = torch.randint(PIECES, (64, 41), device=device)
    with torch.autocast("cuda", torch.float16):
        h = model(image, caption[:, :-1]).flatten(0, 1)
        target = caption[:, 1:].flatten()
        if os.environ.get("MENDED"):
            parts = zip(h.split(128), target.split(128))
            loss = sum(checkpoint(model.part, a, b, use_reentrant=False) for a, b in parts)
        else:
            loss = model.part(h, target)
        loss = loss / target.numel()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
