import copy
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


class Series(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(512, 16, generator=g), "y": torch.randn(1, generator=g)}


class TCN(nn.Module):
    def __init__(self, width=128, levels=8):
        super().__init__()
        self.inp = nn.Conv1d(16, width, 1)
        self.levels = nn.ModuleDict(
            {
                f"l{i}": nn.Sequential(
                    nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                    nn.Conv1d(width, width, 1),
                    nn.ReLU(),
                )
                for i in range(levels)
            }
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x.transpose(1, 2))
        for level in self.levels.values():
            x = x + level(x)
        return self.out(x[..., -1])


class Experiment(object):
    def __init__(self, lr: float = 1e-3):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = TCN().to(self.device)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, 10)
        self.criterion = nn.SmoothL1Loss()

    def step(self, batch):
        pred = self.model(batch["x"].to(self.device))
        return self.criterion(pred, batch["y"].to(self.device))

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in DataLoader(Series(), batch_size=64, shuffle=True):
                loss = self.step(batch)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                with torch.no_grad():
                    for a, b in zip(self.ema.parameters(), self.model.parameters()):
                        a.lerp_(b, 0.01)
            self.sched.step()
            log.info("epoch %d loss %.3f", epoch, loss.item())


if __name__ == "__main__":
    Experiment().fit(2)
