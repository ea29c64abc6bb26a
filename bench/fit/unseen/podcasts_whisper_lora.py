"""Whisper for podcasts: weights frozen in bf16, low-rank adapters on q_proj and v_proj, accelerate."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration


class Podcasts(Dataset):
    def __init__(self, n, words=200):
        self.n, self.words = n, words

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "input_features": torch.randn(80, 3000),
            "labels": torch.randint(0, 50000, (self.words,)),
        }


class Adapter(nn.Module):
    def __init__(self, inner, r=32, scale=2.0):
        super().__init__()
        self.inner, self.scale = inner, scale
        self.down = nn.Linear(inner.in_features, r, bias=False)
        self.up = nn.Linear(r, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.inner(x) + self.scale * self.up(self.down(x))


def adapt(model):
    model.requires_grad_(False)
    targets = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in ("q_proj", "v_proj")
    ]
    for parent, name in targets:
        setattr(parent, name, Adapter(getattr(parent, name)))
    return model


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    config = WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    model = adapt(WhisperForConditionalGeneration(config))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    loader = DataLoader(Podcasts(12 * 8), batch_size=12)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(step, loss.item())


if __name__ == "__main__":
    main()
