"""Logs of servers by Mamba-2 of transformers, the scan in plain PyTorch, accelerate without mixed precision, AdamW."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import Mamba2Config, Mamba2ForCausalLM, get_cosine_schedule_with_warmup


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=6e-4)
    return parser.parse_args()


def main():
    opts = parse()
    config = Mamba2Config(
        vocab_size=16384,
        hidden_size=768,
        num_hidden_layers=4,
        num_heads=24,
        head_dim=64,
        state_size=64,
        n_groups=1,
        chunk_size=64,
        expand=2,
        use_cache=False,
    )
    model = Mamba2ForCausalLM(config)
    lines = torch.randint(3, config.vocab_size, (opts.batch * opts.steps, opts.length))
    loader = DataLoader(TensorDataset(lines), batch_size=opts.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 1, opts.steps)

    accelerator = Accelerator()
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for (ids,) in loader:
        optimizer.zero_grad()
        output = model(input_ids=ids, labels=ids)
        accelerator.backward(output.loss)
        optimizer.step()
        schedule.step()
        print("loss", float(output.loss))


if __name__ == "__main__":
    main()
