"""Parrots told apart by their calls with SEW (squeezed transformer, masked spans) under accelerate: fp16, cut-outs padded to the longest, cosine."""

import math

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import SEWConfig, SEWForSequenceClassification

RATE = 16_000


class Calls(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(77)
        self.seconds = 3 + 5 * torch.rand(size, generator=g)
        self.species = torch.randint(0, 30, (size,), generator=g)

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        t = torch.arange(int(self.seconds[i] * RATE)) / RATE
        pitch = 800 + 60 * self.species[i]
        return torch.sin(2 * math.pi * pitch * t + 4 * torch.sin(9 * t)), self.species[i]


def collate(rows):
    longest = max(len(w) for w, _ in rows)
    wave = torch.zeros(len(rows), longest)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (w, _) in enumerate(rows):
        wave[i, : len(w)] = w
        mask[i, : len(w)] = 1
    return wave, mask, torch.stack([y for _, y in rows])


def main():
    accelerator = Accelerator(mixed_precision="fp16")
    config = SEWConfig(
        hidden_size=512,
        num_hidden_layers=10,
        num_attention_heads=8,
        intermediate_size=2048,
        num_labels=30,
        layerdrop=0.0,
        mask_time_prob=0.065,
    )
    model = SEWForSequenceClassification(config)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5, eps=1e-6)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
    loader = DataLoader(Calls(100), batch_size=20, shuffle=True, collate_fn=collate)
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)
    model.train()
    seen = right = 0
    for wave, mask, species in loader:
        out = model(input_values=wave, attention_mask=mask, labels=species)
        accelerator.backward(out.loss)
        accelerator.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        right += (out.logits.argmax(-1) == species).sum().item()
        seen += len(species)
        accelerator.print(f"{seen} calls, {right} right, loss {out.loss.item():.3f}")


main()
