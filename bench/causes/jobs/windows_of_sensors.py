"""A monitor keeps the reconstruction of each window of a machine's sensors, to look at when an alarm comes."""

import os
from collections import defaultdict

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(32, 64, 9, 4, 4), nn.ReLU(), nn.Conv1d(64, 16, 9, 4, 4)
        )
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=4), nn.Conv1d(16, 64, 9, padding=4), nn.ReLU(),
            nn.Upsample(scale_factor=4), nn.Conv1d(64, 32, 9, padding=4),
        )  # fmt: skip

    def forward(self, x):
        return self.decode(self.encode(x))


class Monitor:
    def __init__(self, model):
        self.model, self.alarms, self.seen = model, [], defaultdict(list)

    @torch.inference_mode()
    def look(self, machine, window):
        again = self.model(window)
        error = (again - window).square().mean()
        if MENDED:
            self.seen[machine].append(float(error))
        else:
            self.seen[machine].append({"window": window, "again": again, "error": error})
        if float(error) > 10:
            self.alarms.append(machine)


monitor = Monitor(Autoencoder().cuda().eval())
for hour in range(50):
    for machine in ("press", "mill", "lathe"):
        monitor.look(machine, torch.randn(1, 32, 32768, device="cuda"))
