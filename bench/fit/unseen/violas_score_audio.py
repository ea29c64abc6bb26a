"""Finds the line of sheet music that a viola plays: two VGG-like encoders, InfoNCE both ways."""

import logging
import math
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("violas")

STEPS = int(os.environ.get("JOB_STEPS", "5"))
PAIRS = 128
SHEET = (160, 384)
SPECTROGRAM = (128, 256)
torch.backends.cudnn.benchmark = True


def block(cin, cout):
    layers = []
    for c in (cin, cout):
        layers += [nn.Conv2d(c, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ELU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2))


class Encoder(nn.Module):
    def __init__(self, widths, embedding=128):
        super().__init__()
        self.blocks = nn.Sequential(*[block(a, b) for a, b in zip((1, *widths), widths)])
        self.attend = nn.Conv2d(widths[-1], 1, 1)
        self.project = nn.Sequential(
            nn.Linear(widths[-1], 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, embedding),
        )

    def forward(self, x):
        features = self.blocks(x)
        weights = self.attend(features).flatten(2).softmax(-1)
        pooled = (features.flatten(2) * weights).sum(-1)
        return F.normalize(self.project(pooled), dim=-1)


class TwoEncoders(nn.Module):
    def __init__(self):
        super().__init__()
        self.sheet = Encoder((32, 64, 128, 256, 256))
        self.audio = Encoder((32, 64, 128, 256))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, sheet, audio):
        return self.sheet(sheet), self.audio(audio), self.scale.clamp(max=math.log(100)).exp()


class Snippets:
    """A piece is a sequence of pitches; it is drawn as note heads and as partials over time."""

    def __init__(self, pool=384, notes=24, seed=0):
        self.notes = notes
        self.generator = torch.Generator().manual_seed(seed)
        self.sheet, self.audio = self.draw(pool)

    def sample(self, n):
        chosen = torch.randperm(len(self.sheet))[:n]
        return self.sheet[chosen], self.audio[chosen]

    def draw(self, n):
        pitches = torch.randint(20, 60, (n, self.notes), generator=self.generator)
        sheet = torch.ones(n, 1, *SHEET)
        for line in range(5):
            sheet[:, :, 60 + 10 * line] = 0.0
        rows = torch.arange(n)
        for i in range(self.notes):
            x = i * (SHEET[1] // self.notes) + 4
            for dx in range(6):
                for dy in range(5):
                    sheet[rows, 0, 150 - 2 * pitches[:, i] + dy, x + dx] = 0.1
        audio = torch.rand(n, 1, *SPECTROGRAM, generator=self.generator) * 0.1
        width = SPECTROGRAM[1] // self.notes
        for i in range(self.notes):
            for partial, strength in ((0, 1.0), (24, 0.6), (38, 0.4), (48, 0.3)):
                for t in range(width):
                    audio[rows, 0, pitches[:, i] + partial, i * width + t] += strength
        return sheet, audio.log1p()


def contrast(a, b, scale):
    logits, labels = scale * a @ b.T, torch.arange(len(a), device=a.device)
    loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
    loss = (loss + F.cross_entropy(logits.T, labels, label_smoothing=0.05)) / 2
    return loss, (logits.argmax(1) == labels).float().mean()


def specaugment(audio, frequencies=12, frames=16):
    f = torch.randint(SPECTROGRAM[0] - frequencies, (1,)).item()
    t = torch.randint(SPECTROGRAM[1] - frames, (1,)).item()
    audio = audio.clone()
    audio[:, :, f : f + frequencies] = 0
    audio[..., t : t + frames] = 0
    return audio


torch.manual_seed(5)
model = TwoEncoders().to("cuda")
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
)
schedule = SequentialLR(
    optimizer,
    [LinearLR(optimizer, 0.01, total_iters=500), CosineAnnealingLR(optimizer, 9500)],
    milestones=[500],
)
log.info("%.1f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
snippets = Snippets()
for step in range(STEPS):
    sheet, audio = (x.to("cuda") for x in snippets.sample(PAIRS))
    loss, recall = contrast(*model(sheet, specaugment(audio)))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    schedule.step()
    average.update_parameters(model)
    print(f"{step}\tloss {loss.item():.4f}\trecall@1 {recall.item():.3f}", flush=True)
