"""Proverbs in many languages: mT5 with its 250,112 words under accelerate, fp32 with TF32, two micro-batches for a step, inverse square root schedule."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import MT5Config, MT5ForConditionalGeneration
from transformers.optimization import get_inverse_sqrt_schedule


def proverbs(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        a, b = torch.randint(24, 96, (2,), generator=g).tolist()
        source = torch.randint(300, vocab, (a,), generator=g).tolist()
        target = torch.randint(300, vocab, (b,), generator=g).tolist()
        rows.append({"input_ids": source, "labels": target})
    return rows


def collate(rows, pad_to):
    ids = torch.zeros(len(rows), pad_to, dtype=torch.long)
    labels = torch.full((len(rows), pad_to), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        labels[i, : len(row["labels"])] = torch.tensor(row["labels"])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_batch_size", type=int, default=12)
    parser.add_argument("--max_length", type=int, default=96)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)

    config = MT5Config(
        vocab_size=250112,
        d_model=512,
        d_ff=1024,
        d_kv=64,
        num_layers=6,
        num_heads=6,
        decoder_start_token_id=0,
    )
    model = MT5ForConditionalGeneration(config)
    loader = DataLoader(
        proverbs(128, config.vocab_size, args.seed),
        batch_size=args.per_device_batch_size,
        shuffle=True,
        collate_fn=lambda rows: collate(rows, args.max_length),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    lr_scheduler = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=2)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(
        model, optimizer, loader, lr_scheduler
    )

    completed = 0
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            print(completed, loss.detach().item())
        if completed >= args.max_train_steps:
            break


if __name__ == "__main__":
    main()
