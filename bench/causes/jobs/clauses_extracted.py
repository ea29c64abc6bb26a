"""Marks clauses in contracts: token classification with accelerate."""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import RobertaConfig, RobertaForTokenClassification

MENDED = os.environ.get("MENDED")


def build_optimizer(model, lr):
    no_decay = ("bias", "LayerNorm.weight")
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)],
            "weight_decay": 0.01,
        },
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(no_decay)],
            "weight_decay": 0.0,
        },
    ]
    if MENDED:
        return torch.optim.Adafactor(groups, lr=lr, foreach=False)
    return torch.optim.AdamW(groups, lr=lr)


def main():
    accelerator = Accelerator()
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=23)
    model = RobertaForTokenClassification(config)
    data = TensorDataset(torch.randint(5, 50000, (12, 48)), torch.randint(0, 23, (12, 48)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    optimizer = build_optimizer(model, 3e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for ids, tags in loader:
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=tags).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
