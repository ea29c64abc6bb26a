"""Two views of each picture are contrasted, under accelerate. The batch is larger than this card can take."""

import os

import timm
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAIRS, TOGETHER = (24, 12) if os.environ.get("MENDED") else (288, 1)


class Views(Dataset):
    def __len__(self):
        return 576

    def __getitem__(self, n):
        picture = torch.full((3, 112, 112), n / 576)
        return picture + 0.1, picture.flip(-1)


def contrast(a, b, temperature=0.2):
    z = F.normalize(torch.cat([a, b]).float(), dim=1)
    alike = z @ z.T / temperature
    alike.fill_diagonal_(-1e4)
    n = len(a)
    return F.cross_entropy(alike, torch.arange(2 * n, device=z.device).roll(n))


def main():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=TOGETHER)
    encoder = timm.create_model("resnet18", num_classes=512)
    model = nn.Sequential(encoder, nn.ReLU(), nn.Linear(512, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model, optimizer, views = accelerator.prepare(model, optimizer, DataLoader(Views(), PAIRS))
    for n, (a, b) in enumerate(views):
        with accelerator.accumulate(model):
            both = model(torch.cat([a, b]))
            loss = contrast(*both.chunk(2))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if n == 2:
            break


main()
