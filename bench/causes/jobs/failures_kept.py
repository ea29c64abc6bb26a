"""Trials that fail are noted with their exceptions, which hold the models."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.LSTM(32, 1024, num_layers=2, batch_first=True)
        self.decode = nn.Linear(1024, 32)

    def forward(self, series):
        return self.decode(self.encode(series)[0][:, -1])


def trial(rate):
    model = Forecaster().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(3):
        series = torch.randn(16, 24, 32, device="cuda")
        loss = nn.functional.mse_loss(model(series), series[:, -1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if rate > 1e-4:
        raise ArithmeticError(f"diverged with {rate}")


failures = {}
for rate in (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001):
    try:
        trial(rate)
    except ArithmeticError as error:
        failures[rate] = error
