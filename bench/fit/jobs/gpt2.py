"""Trains GPT-2 (124M) on random text with AdamW under bf16 autocast."""

import argparse

import torch
import transformers
from text import RandomText
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = transformers.GPT2Config(use_cache=False)
    model = transformers.GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    text = RandomText(args.batch_size * args.steps, args.length, config.vocab_size)
    data = DataLoader(text, batch_size=args.batch_size)

    for tokens, _ in data:
        tokens = tokens.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
