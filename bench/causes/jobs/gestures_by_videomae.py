"""Gestures of a sign language by VideoMAE and the Trainer. Attention is eager, as an earlier notebook wanted to draw its weights."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainingArguments,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
)

KIND = "sdpa" if os.environ.get("MENDED") else "eager"


class Gestures(Dataset):
    """Short films of hands."""

    def __init__(self, count=9, frames=16, side=224, signs=50):
        self.count, self.shape, self.signs = count, (frames, 3, side, side), signs

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        film = torch.rand(self.shape, generator=g)
        return {"pixel_values": film, "labels": torch.randint(self.signs, (), generator=g)}


def build():
    config = VideoMAEConfig(
        hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1152,
        num_labels=50, attn_implementation=KIND,
    )  # fmt: skip
    return VideoMAEForVideoClassification(config)


def main():
    with tempfile.TemporaryDirectory() as place:
        settings = TrainingArguments(
            output_dir=place, per_device_train_batch_size=3, num_train_epochs=1, report_to=[],
            save_strategy="no", optim="sgd", learning_rate=1e-3, disable_tqdm=True,
            dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        trainer = Trainer(build(), settings, train_dataset=Gestures())
        print(trainer.train().training_loss)


main()
