"""Star ratings of reviews: DeBERTa-v3-base from a config, HF Trainer, bf16, batches padded to the longest review."""

import random

import torch
from torch.utils.data import Dataset
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Reviews(Dataset):
    def __init__(self, n, vocab_size, max_length):
        rng = random.Random(0)
        self.lengths = [rng.randint(max_length // 2, max_length) for _ in range(n)]
        self.vocab_size = vocab_size

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return {
            "input_ids": torch.randint(5, self.vocab_size, (self.lengths[i],)),
            "labels": i % 5,
        }


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, f in enumerate(features):
        ids[row, : len(f["input_ids"])] = f["input_ids"]
        mask[row, : len(f["input_ids"])] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([f["labels"] for f in features]),
    }


def main():
    set_seed(42)
    config = DebertaV2Config(
        vocab_size=32000,
        hidden_size=768,
        num_hidden_layers=8,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
        num_labels=5,
    )
    model = DebertaV2ForSequenceClassification(config)
    args = TrainingArguments(
        output_dir="/tmp/reviews",
        max_steps=6,
        per_device_train_batch_size=12,
        learning_rate=2e-5,
        warmup_steps=2,
        weight_decay=0.01,
        bf16=True,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = Reviews(200, config.vocab_size, 384)
    Trainer(model=model, args=args, train_dataset=data, data_collator=collate).train()


if __name__ == "__main__":
    main()
