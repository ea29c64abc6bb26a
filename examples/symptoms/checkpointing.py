"""Checkpointing is on, but after an evaluation nobody called train()."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
model.eval()
for _ in range(3):
    tokens = torch.randint(50257, (8, 1024), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
