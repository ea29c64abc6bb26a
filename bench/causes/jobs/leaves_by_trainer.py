"""Diseases of leaves: a ConvNeXt of the transformers library and its Trainer, with the batch of the paper, which had eight cards."""

import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    ConvNextV2Config,
    ConvNextV2ForImageClassification,
    Trainer,
    TrainingArguments,
)

MENDED = bool(os.environ.get("MENDED"))
DISEASES = ["healthy", "rust", "scab", "mildew", "blight", "mosaic"]
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class Leaves(Dataset):
    """Green squares with spots."""

    def __init__(self, count, side=128):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        image = np.tile(np.array([0.2, 0.6, 0.2]), (self.side, self.side, 1))
        label = i % len(DISEASES)
        for x, y in rng.integers(0, self.side - 8, (4 * label, 2)):
            image[x : x + 8, y : y + 8] = (0.5, 0.3, 0.1)
        pixels = ((image - MEAN) / STD).astype(np.float32).transpose(2, 0, 1)
        return {"pixel_values": torch.from_numpy(pixels), "labels": label}


def accuracy(result):
    return {"accuracy": float((result.predictions.argmax(-1) == result.label_ids).mean())}


def main():
    config = ConvNextV2Config(
        image_size=128,
        hidden_sizes=[48, 96, 192, 384],
        depths=[2, 2, 4, 2],
        num_labels=len(DISEASES),
        id2label=dict(enumerate(DISEASES)),
        label2id={name: n for n, name in enumerate(DISEASES)},
        drop_path_rate=0.1,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=12 if MENDED else 96,
            gradient_accumulation_steps=8 if MENDED else 1,
            per_device_eval_batch_size=12,
            learning_rate=4e-4,
            weight_decay=0.05,
            warmup_steps=1,
            max_steps=2,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=ConvNextV2ForImageClassification(config),
            args=arguments,
            train_dataset=Leaves(192),
            eval_dataset=Leaves(24),
            compute_metrics=accuracy,
        )
        trainer.train()
        print(trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main()
