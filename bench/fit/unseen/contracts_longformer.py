"""Contracts by kind: Longformer over 2,048 tokens with global attention on the first, fp16 with a GradScaler."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LongformerConfig, LongformerForSequenceClassification


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-5)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    device = torch.device("cuda")
    config = LongformerConfig(
        attention_window=args.window,
        num_hidden_layers=4,
        max_position_embeddings=args.length + 2,
        vocab_size=50265,
        num_labels=12,
    )
    model = LongformerForSequenceClassification(config).to(device)
    model.train()

    data = TensorDataset(
        torch.randint(3, 50000, (args.batch_size * args.steps, args.length)),
        torch.randint(0, 12, (args.batch_size * args.steps,)),
    )
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, pin_memory=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for step, (ids, labels) in enumerate(loader):
        ids, labels = ids.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        mask = torch.ones_like(ids)
        globally = torch.zeros_like(ids)
        globally[:, 0] = 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(ids, attention_mask=mask, global_attention_mask=globally, labels=labels)
        scaler.scale(out.loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {out.loss.item():.4f}")


if __name__ == "__main__":
    main()
