"""Sales of one country after the other. Holidays are worked out once for each forecaster, by a decorator."""

import os
from functools import lru_cache

import torch
from torch import nn


class CountryForecaster:
    """Made, trained and thrown away for each country."""

    def __init__(self, country, width=1400):
        self.country = country
        self.net = nn.ModuleDict({
            "past": nn.LSTM(12, width, batch_first=True),
            "days": nn.Linear(366, width),
            "out": nn.Linear(2 * width, 28),
        }).cuda()  # fmt: skip
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    @lru_cache(maxsize=None)
    def holidays(self, year):
        """A row of zeros and ones: which days of the year are holidays there."""
        days = torch.zeros(366)
        days[[hash((self.country, year, k)) % 366 for k in range(11)]] = 1
        return days

    def step(self, year):
        past, sold = torch.randn(16, 90, 12, device="cuda"), torch.rand(16, 28, device="cuda")
        days = self.holidays(year).cuda().expand(16, -1)
        state = self.net["past"](past)[0][:, -1]
        made = self.net["out"](torch.cat([state, self.net["days"](days).relu()], 1))
        loss = nn.functional.poisson_nll_loss(made, sold)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


report = {}
for country in ("AT", "BE", "CZ", "DK", "EE", "FI", "GR", "HU", "IE", "LV"):
    forecaster = CountryForecaster(country)
    report[country] = [forecaster.step(year) for year in (2021, 2022, 2023)]
    if os.environ.get("MENDED"):
        CountryForecaster.holidays.cache_clear()
print(report)
