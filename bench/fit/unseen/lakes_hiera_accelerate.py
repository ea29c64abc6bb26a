"""Satellite pictures of lakes, Hiera as a masked autoencoder (HieraForPreTraining) under accelerate: bf16, clipping, cosine by LambdaLR."""

import math

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import HieraConfig, HieraForPreTraining


def lakes(count=128):
    base = torch.rand(count, 3, 28, 28)
    return TensorDataset(torch.nn.functional.interpolate(base, size=(224, 224), mode="nearest"))


def main(epochs=2, batch=64, lr=8e-4):
    accelerator = Accelerator(mixed_precision="bf16")
    model = HieraForPreTraining(
        HieraConfig(
            embed_dim=96,
            depths=[2, 3, 9, 2],
            mask_ratio=0.6,
            decoder_hidden_size=384,
            decoder_depth=4,
            decoder_num_heads=8,
        )
    )
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.95),
    )
    loader = DataLoader(lakes(), batch_size=batch, shuffle=True, drop_last=True)
    total = epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / total))
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for epoch in range(epochs):
        for (pixels,) in loader:
            out = model(pixel_values=pixels)
            accelerator.backward(out.loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {out.loss.item():.4f}")


if __name__ == "__main__":
    main()
