"""An ensemble of the weather in pairs: each disturbance is added and taken away. Of each pair one stays where it is, and then all that stayed are stacked."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
PAIRS, HEIGHT, WIDTH = 100, 721, 1440


class Atmosphere(nn.Module):
    """Six hours of temperature and pressure, on a coarse grid; fine detail drifts."""

    def __init__(self, c=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.AvgPool2d(8), nn.Conv2d(2, c, 3, padding=1), nn.GELU(), nn.Conv2d(c, 2, 3, padding=1)
        )

    def forward(self, state):
        change = self.net(state[None])
        change = nn.functional.interpolate(change, state.shape[-2:], mode="bilinear")[0]
        return state.roll(1, 2).add_(change)


class Ensemble:
    def __init__(self, model, analysis, spread=0.1):
        self.model, self.analysis, self.spread = model, analysis, spread
        self.members = []

    def disturb(self):
        """Both of a pair, as their mean is the analysis."""
        for _ in range(PAIRS):
            bump = torch.randn_like(self.analysis).mul_(self.spread)
            self.members.append(self.analysis + bump)
            self.members.append(self.analysis - bump)

    def thin(self):
        """The one of a pair that the second member of it does not explain better."""
        self.members = self.members[::2]

    def forecast(self, steps=2):
        for _ in range(steps):
            for n, member in enumerate(self.members):
                self.members[n].copy_(self.model(member))

    def quantiles(self, room=None):
        every = torch.stack(self.members) if room is None else room
        return [every[:, :, row].quantile(0.9, dim=0) for row in range(0, HEIGHT, 200)]


with torch.inference_mode():
    ensemble = Ensemble(Atmosphere().cuda().eval(), torch.rand(2, HEIGHT, WIDTH, device="cuda"))
    if MENDED:
        # The place of those that will stay comes first, in one piece.
        room = torch.empty(PAIRS, 2, HEIGHT, WIDTH, device="cuda")
        for n in range(PAIRS):
            room[n] = ensemble.analysis + ensemble.spread * torch.randn_like(ensemble.analysis)
        ensemble.members = list(room)
        ensemble.forecast()
        print(len(ensemble.quantiles(room)))
    else:
        ensemble.disturb()
        ensemble.thin()
        ensemble.forecast()
        print(len(ensemble.quantiles()))
