"""Federated learning: hospitals train in turn, and only weights travel. What a hospital trained stays with it, on the same card."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def network(signals=12, width=1280, diagnoses=27):
    return nn.Sequential(
        nn.Conv1d(signals, 64, 9, stride=4), nn.ReLU(),
        nn.Conv1d(64, 64, 9, stride=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(32), nn.Flatten(),
        nn.Linear(64 * 32, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, diagnoses),
    )  # fmt: skip


class Hospital:
    """Has patients, and for a while a network of its own."""

    def __init__(self, name, patients):
        self.name, self.patients = name, patients
        self.model = self.optimizer = None

    def records(self, batch=16):
        g = torch.Generator().manual_seed(self.patients)
        for _ in range(0, self.patients, batch):
            yield (
                torch.randn(batch, 12, 1000, generator=g),
                torch.rand(batch, 27, generator=g).round(),
            )

    def train(self, shared):
        """Goes on from the shared weights; returns its own, on the CPU, and how many patients they saw."""
        self.model = network().cuda()
        self.model.load_state_dict(shared)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        for signal, diagnoses in self.records():
            self.optimizer.zero_grad()
            scores = self.model(signal.cuda())
            nn.functional.binary_cross_entropy_with_logits(scores, diagnoses.cuda()).backward()
            self.optimizer.step()
        weights = {name: value.cpu() for name, value in self.model.state_dict().items()}
        if MENDED:
            self.model = self.optimizer = None
        return weights, self.patients


class Server:
    def __init__(self, hospitals):
        self.hospitals = hospitals
        self.shared = network().state_dict()

    def round(self):
        total, mean = sum(h.patients for h in self.hospitals), None
        for hospital in self.hospitals:
            weights, patients = hospital.train(self.shared)
            share = {name: value * (patients / total) for name, value in weights.items()}
            mean = share if mean is None else {name: mean[name] + share[name] for name in mean}
        self.shared = mean


server = Server([Hospital(f"hospital {n}", 32 + 16 * (n % 3)) for n in range(16)])
for number in range(2):
    server.round()
    print("round", number, {name: tuple(v.shape) for name, v in list(server.shared.items())[:1]})
