"""Puzzles solved in words by a small GPT-OSS (attention sinks, sliding windows, 8 experts) with Trainer: gradient checkpointing, bf16, answers only in the loss."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GptOssConfig, GptOssForCausalLM, Trainer, TrainingArguments


class Puzzles(Dataset):
    def __init__(self, n, length, vocab):
        self.n, self.length, self.vocab = n, length, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = torch.randint(10, self.vocab, (self.length,))
        labels = ids.clone()
        labels[: self.length // 3] = -100
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def build():
    return GptOssForCausalLM(
        GptOssConfig(
            vocab_size=24_000,
            hidden_size=640,
            intermediate_size=640,
            num_hidden_layers=12,
            num_attention_heads=10,
            num_key_value_heads=2,
            head_dim=64,
            num_local_experts=16,
            num_experts_per_tok=2,
            sliding_window=128,
            use_cache=False,
        )
    )


def main():
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="puzzles"),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_checkpointing=True,
        bf16=True,
        learning_rate=1e-4,
        weight_decay=0.1,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model=build(), args=args, train_dataset=Puzzles(64, 512, 24_000)).train()


if __name__ == "__main__":
    main()
