#!/usr/bin/env python
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        self.emb = nn.Embedding(20000, hidden)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(hidden, 8, 4 * hidden, batch_first=True, dropout=0.1), layers
        )
        self.decoder = nn.Linear(hidden, 20000)

    def forward(self, x):
        return self.decoder(self.encoder(self.emb(x)))


def train(args, model, device, optimizer, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    for batch_idx in range(args.batches):
        data = torch.randint(0, 20000, (args.batch_size, args.seq), device=device)
        target = torch.randint(0, 20000, (args.batch_size, args.seq), device=device)
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output.view(-1, 20000), target.view(-1))
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"{epoch} {batch_idx}")
            if args.dry_run:
                break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda")
    model = Net(256, 4).to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, optimizer, epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
