"""Only the encoder of another run is needed; but its file has the moments of Adam and an average too, and is read whole."""

import os
import tempfile
from dataclasses import dataclass

import torch
from torchvision.models import resnet34


@dataclass
class Settings:
    source: str
    device: str = "cuda"
    read_to: str = "cpu" if os.environ.get("MENDED") else "cuda"
    labels: int = 3
    batch: int = 4


def another_run(path):
    """What somebody's run left behind."""
    weights = {
        f"encoder.{name}": value for name, value in resnet34(num_classes=1000).state_dict().items()
    }
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    torch.save(
        {
            "state_dict": weights, "ema": dict(zeros), "steps": 90_000,
            "exp_avg": {name: value.clone() for name, value in zeros.items()},
            "exp_avg_sq": {name: value.clone() + 1 for name, value in zeros.items()},
        },
        path,
    )  # fmt: skip


class Classifier:
    def __init__(self, settings):
        self.settings = settings
        self.run = torch.load(settings.source, map_location=settings.read_to, weights_only=True)
        self.net = resnet34()
        prefix = "encoder."
        found = {k.removeprefix(prefix): v for k, v in self.run["state_dict"].items()}
        self.net.load_state_dict(found)
        self.net.fc = torch.nn.Linear(512, settings.labels)
        self.net.to(settings.device)

    def train(self, steps):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        for _ in range(steps):
            x = torch.randn(self.settings.batch, 3, 128, 128, device=self.settings.device)
            y = torch.randint(self.settings.labels, (self.settings.batch,)).to(x.device)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.net(x), y).backward()
            optimizer.step()


with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    another_run(file.name)
    Classifier(Settings(file.name)).train(3)
