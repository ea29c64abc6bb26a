"""Goes on training a reader of questions where an earlier run was stopped."""

import os
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForQuestionAnswering

MENDED = os.environ.get("MENDED")


class Trainer:
    def __init__(self, config, device="cuda"):
        self.device = torch.device(device)
        self.model = BertForQuestionAnswering(config)
        self.checkpoint = None
        self.epoch = 0

    def save(self, path):
        weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        best = {k: v.clone() for k, v in weights.items()}
        torch.save({"weights": weights, "best": best, "epoch": 3, "f1": 0.71}, path)

    def resume(self, path):
        where = "cpu" if MENDED else self.device
        self.checkpoint = torch.load(path, map_location=where, weights_only=True)
        self.model.load_state_dict(self.checkpoint["weights"])
        self.epoch = self.checkpoint["epoch"] + 1

    def fit(self, steps):
        self.model.to(self.device).train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        for _ in range(steps):
            ids = torch.randint(5, 30000, (4, 96), device=self.device)
            start = torch.randint(0, 96, (4,), device=self.device)
            end = torch.randint(0, 96, (4,), device=self.device)
            loss = self.model(input_ids=ids, start_positions=start, end_positions=end).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", self.epoch, "best so far", self.checkpoint["f1"])


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "epoch3.pt"
    config = BertConfig(num_hidden_layers=10)
    Trainer(config).save(path)
    trainer = Trainer(config)
    trainer.resume(path)
    trainer.fit(3)
