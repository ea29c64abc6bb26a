"""Gestures in clips of 16 frames: VideoMAE for classification, Trainer in fp16 with accumulation."""

import tempfile

import torch
from transformers import (
    Trainer,
    TrainingArguments,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
)


class Clips(torch.utils.data.Dataset):
    """Sixteen frames of noise and the number of a gesture."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {"pixel_values": torch.randn(16, 3, 224, 224), "labels": torch.tensor(i % 27)}


def train():
    config = VideoMAEConfig(
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_labels=27,
    )
    model = VideoMAEForVideoClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        learning_rate=5e-5,
        warmup_steps=1,
        max_steps=6,
        fp16=True,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        remove_unused_columns=False,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Clips())
    out = trainer.train()
    print(f"mean loss {out.training_loss:.4f}")


if __name__ == "__main__":
    train()
