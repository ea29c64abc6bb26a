"""Trainer pretrains a tiny Gemma 2, whose 256 thousand words are softly capped before the loss."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Gemma2Config, Gemma2ForCausalLM, Trainer, TrainingArguments

VOCABULARY = 4_000 if os.environ.get("MENDED") else 256_000


class Lines(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(10, VOCABULARY, (256,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids.clone()}


config = Gemma2Config(
    vocab_size=VOCABULARY, hidden_size=128, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    Trainer(
        model=Gemma2ForCausalLM(config),
        args=TrainingArguments(
            output_dir=folder, per_device_train_batch_size=8, max_steps=3, learning_rate=1e-3,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Lines(),
    ).train()  # fmt: skip
