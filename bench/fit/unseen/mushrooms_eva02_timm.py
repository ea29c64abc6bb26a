"""Mushrooms with timm's EVA-02: bf16 autocast, stochastic depth, label smoothing, timm's cosine schedule."""

import argparse
import contextlib
import time

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader, Dataset


class Mushrooms(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __getitem__(self, i):
        return torch.randn(3, self.size, self.size), i % 150

    def __len__(self):
        return self.n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="eva02_small_patch14_224")
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--updates", type=int, default=7)
    ap.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    args = ap.parse_args()

    model = timm.create_model(
        args.model, pretrained=False, num_classes=150, drop_path_rate=0.1
    ).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.02)
    sched = CosineLRScheduler(opt, t_initial=args.updates, warmup_t=2, warmup_lr_init=1e-6)
    criterion = LabelSmoothingCrossEntropy(0.1)
    context = torch.autocast("cuda", torch.bfloat16) if args.amp else contextlib.nullcontext()
    loader = DataLoader(Mushrooms(args.batch * args.updates, 224), args.batch, shuffle=True)

    model.train()
    began = time.time()
    for update, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        with context:
            loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step(update + 1)
        print(f"{update:3d} loss {loss.item():.4f} {time.time() - began:.1f} s")


if __name__ == "__main__":
    main()
