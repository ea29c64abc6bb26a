"""Fungi by family with the Hugging Face trainer."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

MENDED = os.environ.get("MENDED")


class Fungi(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"pixel_values": torch.randn(3, 160, 160), "labels": i % 40}


config = ResNetConfig(
    depths=[2, 3, 4, 2],
    hidden_sizes=[128, 256, 512, 768],
    embedding_size=48,
    layer_type="bottleneck",
    num_labels=40,
)
model = ResNetForImageClassification(config)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8 if MENDED else 64,
        gradient_accumulation_steps=8 if MENDED else 1,
        max_steps=3,
        learning_rate=0.02,
        optim="sgd",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    Trainer(model=model, args=args, train_dataset=Fungi(64 * 3)).train()
