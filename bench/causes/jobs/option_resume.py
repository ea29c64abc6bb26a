"""A training program with --resume. What it reads has the weights, their average and the optimizer, on the device."""

import argparse
import os
import tempfile

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def build(width, depth):
    layers = [nn.Linear(256, width)]
    for _ in range(depth):
        layers += [nn.SiLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.SiLU(), nn.Linear(width, 256))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args(argv)
    device = torch.device("cuda")
    model = build(args.width, args.depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu" if MENDED else device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["step"]
    for step in range(start, start + args.steps):
        x = torch.randn(64, 256, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if args.save:
        state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step + 1)
        torch.save(state, args.save)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "state.pt")
    main(["--save", path, "--steps", "1"])
    torch.cuda.empty_cache()
    main(["--resume", path])
