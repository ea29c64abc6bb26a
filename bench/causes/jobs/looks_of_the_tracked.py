"""Cars on a motorway are followed from camera to camera. How each looked in every picture so far is kept with its track."""

import os
from collections import deque

import torch
from torch import nn

REMEMBERED = 5 if os.environ.get("MENDED") else None


class Track:
    count = 0

    def __init__(self, box):
        Track.count += 1
        self.number, self.box, self.missed = Track.count, box, 0
        self.looks = deque(maxlen=REMEMBERED)

    def update(self, box, look):
        self.box, self.missed = box, 0
        self.looks.append(look)

    def likeness(self, looks):
        """The mean likeness of each new look to those remembered."""
        known = torch.stack([look.mean((1, 2)) for look in list(self.looks)[-5:]])
        return (looks.mean((2, 3)) @ known.T).mean(1)


class Appearance(nn.Module):
    """A feature map of each car, so that parts can be compared later on."""

    def __init__(self, channels=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 5, 2, 2), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 96, 3, 2, 1), nn.BatchNorm2d(96), nn.ReLU(),
            nn.Conv2d(96, channels, 3, 1, 1), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, crops):
        return nn.functional.normalize(self.net(crops), dim=1)


class Tracker:
    def __init__(self, patience=30):
        self.appearance, self.patience = Appearance().cuda().eval(), patience
        self.tracks = []

    @torch.inference_mode()
    def advance(self, boxes, crops):
        looks = self.appearance(crops.cuda())
        free = set(range(len(boxes)))
        for track in self.tracks:
            near = min(free, key=lambda n: abs(boxes[n] - track.box), default=None)
            if near is None:
                track.missed += 1
                continue
            free.discard(near)
            if track.likeness(looks[near : near + 1]).item() > -1:
                track.update(boxes[near], looks[near].clone())
        for n in free:
            self.tracks.append(Track(boxes[n]))
            self.tracks[-1].update(boxes[n], looks[n].clone())
        self.tracks = [track for track in self.tracks if track.missed < self.patience]


def motorway(pictures=70, cars=12):
    """Where each car is along the road, and its part of the picture."""
    g = torch.Generator().manual_seed(3)
    places = torch.rand(cars, generator=g) * 100
    for _ in range(pictures):
        places = places + torch.rand(cars, generator=g)
        yield places.tolist(), torch.rand(cars, 3, 96, 96, generator=g)


tracker = Tracker()
for boxes, crops in motorway():
    tracker.advance(boxes, crops)
print(len(tracker.tracks), "cars,", sum(len(t.looks) for t in tracker.tracks), "looks")
