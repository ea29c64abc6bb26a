"""Trainer tunes every weight of a BLOOM-like reader by plain SGD, one short text at a time."""

import os
import tempfile

import torch
from transformers import (
    BloomConfig,
    BloomForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {"input_ids": torch.arange(2, 34) + i, "labels": i % 2}


def build():
    config = BloomConfig(
        vocab_size=8192, hidden_size=1536, n_layer=12, n_head=16, num_labels=2, pad_token_id=3
    )
    model = BloomForSequenceClassification(config)
    if os.environ.get("MENDED"):
        # Only the last layer and the head learn.
        model.requires_grad_(False)
        model.transformer.h[-1].requires_grad_(True)
        model.score.requires_grad_(True)
    return model


with tempfile.TemporaryDirectory() as where:
    trainer = Trainer(
        model=build(),
        args=TrainingArguments(
            where, per_device_train_batch_size=1, max_steps=3, optim="sgd", report_to=[],
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Reviews(),
    )  # fmt: skip
    trainer.train()
