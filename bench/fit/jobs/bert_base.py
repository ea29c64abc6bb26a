"""Fine-tunes BERT base as a classifier on random text with AdamW under bf16 autocast."""

import argparse

import torch
import transformers
from text import RandomText
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = transformers.BertConfig()
    model = transformers.BertForSequenceClassification(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    text = RandomText(args.batch_size * args.steps, args.length, config.vocab_size)
    data = DataLoader(text, batch_size=args.batch_size)

    for tokens, classes in data:
        tokens, classes = tokens.cuda(), classes.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=classes).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
