"""Reviews are sorted with the Trainer. Checkpointing is switched on in the config of a model that is built already."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Reviews(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, n):
        return {"input_ids": torch.full((512,), 5 + n), "labels": n % 5}


config = RobertaConfig(
    vocab_size=1000, hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=1024,
    max_position_embeddings=520, num_labels=5,
)  # fmt: skip
model = RobertaForSequenceClassification(config)
if os.environ.get("MENDED"):
    model.gradient_checkpointing_enable()
else:
    model.config.gradient_checkpointing = True

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        max_steps=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Reviews()).train()
