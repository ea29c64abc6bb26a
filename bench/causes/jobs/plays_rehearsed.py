"""Tunes a small language model on plays; reports the loss on unseen acts before each epoch."""

import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

MENDED = os.environ.get("MENDED")


def acts(n, size):
    for _ in range(n):
        yield torch.randint(0, 4000, (size, 512), device="cuda")


def evaluate(model):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for ids in acts(2, 2):
            total += model(input_ids=ids, labels=ids).loss.item()
    if MENDED:
        model.train()
    return total / 2


def train_epoch(model, optimizer):
    for ids in acts(3, 8):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


config = Qwen2Config(
    vocab_size=4000,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=10,
    num_attention_heads=8,
    num_key_value_heads=8,
)
model = Qwen2ForCausalLM(config).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for epoch in range(2):
    print(f"epoch {epoch}")
    evaluate(model)
    train_epoch(model, optimizer)
