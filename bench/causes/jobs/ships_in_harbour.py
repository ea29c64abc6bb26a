"""Sorts ships by type: a new head on the backbone of last year's run."""

import argparse
import os
import tempfile

import torch
import torchvision
from torch import nn

MENDED = os.environ.get("MENDED")


def last_years_run(path):
    """Stands for the file that the earlier training wrote."""
    net = torchvision.models.wide_resnet101_2(num_classes=30)
    weights = net.state_dict()
    average = {k: v.clone() for k, v in weights.items()}
    torch.save({"epoch": 89, "model": weights, "ema": average}, path)


def main(path, device="cuda"):
    last_years_run(path)
    state = torch.load(path, map_location="cpu" if MENDED else device)
    net = torchvision.models.wide_resnet101_2(num_classes=30)
    net.load_state_dict(state["ema"])
    for p in net.parameters():
        p.requires_grad_(False)
    net.fc = nn.Linear(net.fc.in_features, 12)
    net = net.to(device)
    optimizer = torch.optim.SGD(net.fc.parameters(), lr=0.05, momentum=0.9)
    print("starting from epoch", state["epoch"])
    for step in range(3):
        images = torch.randn(24, 3, 224, 224, device=device)
        kinds = torch.randint(0, 12, (24,), device=device)
        loss = nn.functional.cross_entropy(net(images), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().checkpoint or os.path.join(folder, "last.pt"))
