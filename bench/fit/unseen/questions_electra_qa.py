"""Extractive question answering with ELECTRA and accelerate in fp16; no decay for biases and norms."""

import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    ElectraConfig,
    ElectraForQuestionAnswering,
    default_data_collator,
    get_scheduler,
)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--per_device_train_batch_size", type=int, default=24)
    p.add_argument("--max_seq_length", type=int, default=384)
    p.add_argument("--learning_rate", type=float, default=1e-4)
    p.add_argument("--weight_decay", type=float, default=0.01)
    p.add_argument("--max_train_steps", type=int, default=8)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def examples(n, length):
    out = []
    for _ in range(n):
        start = int(torch.randint(20, length - 20, ()))
        out.append(
            {
                "input_ids": torch.randint(999, 30000, (length,)),
                "token_type_ids": (torch.arange(length) > 20).long(),
                "attention_mask": torch.ones(length, dtype=torch.long),
                "start_positions": start,
                "end_positions": min(start + 6, length - 1),
            }
        )
    return out


def main():
    args = parse_args()
    accelerator = Accelerator(mixed_precision="fp16")
    set_seed(args.seed)
    config = ElectraConfig(
        embedding_size=768,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    )
    model = ElectraForQuestionAnswering(config)
    no_decay = ["bias", "LayerNorm.weight"]
    groups = [
        {
            "params": [
                p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)
            ],
            "weight_decay": args.weight_decay,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    dataset = examples(args.per_device_train_batch_size * args.max_train_steps, args.max_seq_length)
    loader = DataLoader(
        dataset,
        shuffle=True,
        collate_fn=default_data_collator,
        batch_size=args.per_device_train_batch_size,
    )
    epochs = math.ceil(args.max_train_steps / len(loader))
    scheduler = get_scheduler("linear", optimizer, 2, args.max_train_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(epochs):
        model.train()
        for batch in loader:
            outputs = model(**batch)
            accelerator.backward(outputs.loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            accelerator.print(f"loss {outputs.loss.detach().float().item():.4f}")


if __name__ == "__main__":
    main()
