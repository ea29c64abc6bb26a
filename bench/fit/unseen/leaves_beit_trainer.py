"""Leaf diseases with BEiT and transformers.Trainer: bf16, cosine schedule, pictures made by __getitem__."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BeitConfig,
    BeitForImageClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Leaves(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"pixel_values": torch.rand(3, 224, 224), "labels": index % 38}


def collate(rows):
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


if __name__ == "__main__":
    set_seed(11)
    model = BeitForImageClassification(
        BeitConfig(
            num_labels=38,
            hidden_size=512,
            num_attention_heads=8,
            intermediate_size=2048,
            num_hidden_layers=12,
            use_relative_position_bias=True,
        )
    )
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        max_steps=8,
        learning_rate=5e-5,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.05,
        bf16=True,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    trainer = Trainer(model=model, args=args, data_collator=collate, train_dataset=Leaves(512))
    result = trainer.train()
    print("loss", result.training_loss)
