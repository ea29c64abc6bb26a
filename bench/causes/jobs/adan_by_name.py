"""Which optimizer is an option of timm's; Adan was said to be the best, and has four values for each weight."""

import os
from types import SimpleNamespace

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

args = SimpleNamespace(
    model="resmlp_36_224", opt="momentum" if os.environ.get("MENDED") else "adan", lr=1e-4,
    weight_decay=0.02, batch=2, epochs=2, classes=20,
)  # fmt: skip


def train_one_epoch(epoch, model, optimizer, scheduler, criterion):
    model.train()
    for _ in range(2):
        x = torch.randn(args.batch, 3, 224, 224, device="cuda")
        y = torch.randint(args.classes, (args.batch,), device="cuda")
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step(epoch + 1)


def main():
    with torch.device("cuda"):
        model = timm.create_model(args.model, num_classes=args.classes, drop_rate=0.0)
    optimizer = create_optimizer_v2(
        model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay, momentum=0.0, foreach=False
    )
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, optimizer, scheduler, criterion)


main()
