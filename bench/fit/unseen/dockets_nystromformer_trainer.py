"""Court dockets by outcome: Nystromformer over 2,048 tokens with 64 landmarks, Trainer in fp16, six texts twice for a step, cosine."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    NystromformerConfig,
    NystromformerForSequenceClassification,
    Trainer,
    TrainingArguments,
)

LENGTH = 2048
OUTCOMES = 13


class Dockets(Dataset):
    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.outcome = rng.integers(0, OUTCOMES, size)

    def __len__(self):
        return len(self.outcome)

    def __getitem__(self, i):
        # the middle 2,048 tokens of the docket: never any padding
        words = torch.randint(5, 30000, (LENGTH,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": int(self.outcome[i])}


config = NystromformerConfig(
    vocab_size=30000,
    hidden_size=512,
    num_attention_heads=8,
    intermediate_size=2048,
    num_hidden_layers=6,
    max_position_embeddings=LENGTH,
    segment_means_seq_len=LENGTH,
    num_landmarks=64,
    conv_kernel_size=65,
    num_labels=OUTCOMES,
)
model = NystromformerForSequenceClassification(config)

with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        learning_rate=3e-5,
        lr_scheduler_type="cosine",
        max_steps=4,
        fp16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    Trainer(model=model, args=args, train_dataset=Dockets(96, seed=1)).train()
