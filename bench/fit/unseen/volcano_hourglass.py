"""Where are the vents? Heatmaps of landmarks on thermal frames of a volcano, by a stacked hourglass."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

from volcano import build_model, load_config
from volcano.data import make_loaders
from volcano.engine import evaluate, train_one_epoch
from volcano.losses import WingHeatmapLoss


def get_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", nargs="*", default=[], help="overrides such as optim.lr=1e-3")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seed", type=int, default=21)
    return parser.parse_args()


def build_optimizer(model, cfg):
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if p.ndim == 1 else decay).append(p)
    groups = [
        {"params": decay, "weight_decay": cfg["decay"]},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.RMSprop(groups, lr=cfg["lr"], momentum=0.9)


def main():
    args = get_args()
    cfg = load_config(args.set)
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    model = build_model(cfg["model"]).to(device, memory_format=torch.channels_last)
    criterion = WingHeatmapLoss(**cfg["loss"])
    optimizer = build_optimizer(model, cfg["optim"])
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, cfg["epochs"] * cfg["data"]["train"]
    )
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
    train_loader, val_loader = make_loaders(cfg["data"], cfg["model"]["landmarks"])
    best = float("inf")
    for epoch in range(cfg["epochs"]):
        loss = train_one_epoch(model, criterion, optimizer, scheduler, train_loader, device)
        error = evaluate(model, val_loader, device)
        print(f"epoch {epoch}: loss {loss:.5f}, error {error:.2f} px", flush=True)
        best = min(best, error)
    print("best", best)


if __name__ == "__main__":
    main()
