"""A program that trains an encoder of speech. The optimizer is an option, and the default keeps two moments."""

import argparse
import os

import torch
from torch import nn

OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=2e-4, weight_decay=0.01),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2),
}


class ConvModule(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inner = nn.Sequential(
            nn.Conv1d(d, 2 * d, 1), nn.GLU(1), nn.Conv1d(d, d, 15, padding=7, groups=d),
            nn.BatchNorm1d(d), nn.SiLU(), nn.Conv1d(d, d, 1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.inner(self.norm(x).transpose(1, 2)).transpose(1, 2)


class Half(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d)
        )

    def forward(self, x):
        return x + 0.5 * self.inner(x)


def build(options):
    d = options.width
    layers = [m for _ in range(options.layers) for m in (Half(d), ConvModule(d), Half(d))]
    return nn.Sequential(nn.Linear(80, d), *layers, nn.Linear(d, 64))


def train(options):
    model = build(options).to(options.device)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    ctc = nn.CTCLoss()
    for _ in range(options.steps):
        mel = torch.randn(options.batch, 200, 80, device=options.device)
        words = torch.randint(1, 64, (options.batch, 20), device=options.device)
        scores = model(mel).log_softmax(-1).transpose(0, 1)
        sizes = torch.full((options.batch,), 200), torch.full((options.batch,), 20)
        loss = ctc(scores, words, *sizes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--device", default="cuda")
train(parser.parse_args(["--optimizer", "sgd"] if os.environ.get("MENDED") else []))
