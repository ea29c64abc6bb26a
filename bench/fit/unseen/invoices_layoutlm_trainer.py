"""Fields of invoices: LayoutLM for token classification, boxes beside the words, Trainer with 8 epochs of one batch."""

import tempfile

import numpy as np
import torch
from transformers import (
    LayoutLMConfig,
    LayoutLMForTokenClassification,
    Trainer,
    TrainingArguments,
)

LABELS = ["O", "B-TOTAL", "I-TOTAL", "B-DATE", "I-DATE", "B-SELLER", "I-SELLER"]


class Invoices(torch.utils.data.Dataset):
    def __init__(self, n=12, length=512, seed=0):
        rng = np.random.default_rng(seed)
        corners = np.sort(rng.integers(0, 1000, (n, length, 2, 2)), axis=2)
        self.rows = {
            "input_ids": rng.integers(1000, 30000, (n, length)),
            "bbox": corners.reshape(n, length, 4),
            "attention_mask": np.ones((n, length), dtype=np.int64),
            "labels": rng.integers(0, len(LABELS), (n, length)),
        }

    def __len__(self):
        return len(self.rows["input_ids"])

    def __getitem__(self, i):
        return {key: torch.from_numpy(value[i]) for key, value in self.rows.items()}


model = LayoutLMForTokenClassification(
    LayoutLMConfig(num_labels=len(LABELS), id2label=dict(enumerate(LABELS)))
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=8,
        per_device_train_batch_size=12,
        learning_rate=5e-5,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        seed=1,
    ),
    train_dataset=Invoices(),
)
print(trainer.train().metrics["train_loss"])
