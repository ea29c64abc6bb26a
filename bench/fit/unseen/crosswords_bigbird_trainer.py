"""Crossword clues filled in by BigBird (block sparse attention, 2,048 tokens) under Trainer: masked words, fp32, polynomial decay."""

import tempfile

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import BigBirdConfig, BigBirdForMaskedLM, Trainer, TrainingArguments

VOCAB, LENGTH, MASK = 30_000, 2048, 67


class Clues(IterableDataset):
    """Random clues; fifteen per cent of the tokens are hidden."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            ids = self.rng.integers(100, VOCAB, LENGTH)
            hidden = self.rng.random(LENGTH) < 0.15
            yield dict(
                input_ids=torch.from_numpy(np.where(hidden, MASK, ids)),
                labels=torch.from_numpy(np.where(hidden, ids, -100)),
                attention_mask=torch.ones(LENGTH, dtype=torch.long),
            )


config = BigBirdConfig(
    vocab_size=VOCAB,
    hidden_size=384,
    num_hidden_layers=4,
    num_attention_heads=6,
    intermediate_size=1536,
    max_position_embeddings=LENGTH,
    attention_type="block_sparse",
    block_size=64,
    num_random_blocks=3,
)

with tempfile.TemporaryDirectory() as out:
    trainer = Trainer(
        model=BigBirdForMaskedLM(config),
        args=TrainingArguments(
            output_dir=out,
            max_steps=5,
            per_device_train_batch_size=4,
            learning_rate=1e-4,
            lr_scheduler_type="polynomial",
            adam_beta2=0.98,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Clues(3),
    )
    trainer.train()
