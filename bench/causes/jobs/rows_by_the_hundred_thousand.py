"""Who cancels a contract? A gated network over columns of a table; a batch is as many rows as trees used to get."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

ROWS, COLUMNS = 262_144, 48
BATCH = 4096 if os.environ.get("MENDED") else 65_536
device = torch.device("cuda")


class GatedBlock(nn.Module):
    """Linear, batch norm, gate, and a shortcut that keeps the variance."""

    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.fc = nn.Linear(fan_in, 2 * fan_out, bias=False)
        self.bn = nn.BatchNorm1d(2 * fan_out, momentum=0.02)
        self.skip = fan_in == fan_out

    def forward(self, x):
        y = F.glu(self.bn(self.fc(x)))
        return (x + y) * 0.5**0.5 if self.skip else y


class ColumnMasks(nn.Module):
    """Which columns the next step looks at."""

    def __init__(self, width, columns):
        super().__init__()
        self.fc = nn.Linear(width, columns, bias=False)
        self.bn = nn.BatchNorm1d(columns)

    def forward(self, a, prior):
        return torch.softmax(self.bn(self.fc(a)) * prior, -1)


class TableNet(nn.Module):
    def __init__(self, columns, width=128, steps=3):
        super().__init__()
        self.bn = nn.BatchNorm1d(columns)
        self.first = GatedBlock(columns, width)
        self.masks = nn.ModuleList(ColumnMasks(width, columns) for _ in range(steps))
        self.blocks = nn.ModuleList(
            nn.Sequential(GatedBlock(columns, width), GatedBlock(width, width), GatedBlock(width, width))
            for _ in range(steps)
        )  # fmt: skip
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.bn(x)
        prior, a, total = torch.ones_like(x), self.first(x), 0
        for masks, block in zip(self.masks, self.blocks):
            mask = masks(a, prior)
            prior = prior * (1.3 - mask)
            a = block(mask * x)
            total = total + F.relu(a)
        return self.out(total).squeeze(-1)


def main():
    torch.manual_seed(0)
    table = torch.randn(ROWS, COLUMNS)
    left = (table[:, 0] + table[:, 7] > 1.2).float()
    model = TableNet(COLUMNS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    start = time.perf_counter()
    order = torch.randperm(ROWS)
    for i in range(0, min(ROWS, 4 * BATCH), BATCH):
        rows = order[i : i + BATCH]
        x, y = table[rows].to(device), left[rows].to(device)
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    schedule.step()
    print(f"loss {loss.item():.4f}, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
