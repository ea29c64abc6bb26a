"""Checkpointing is on, but evaluation leaves the model in its mode, in which it does nothing."""

import os

import torch
from transformers import PhiConfig, PhiForCausalLM

MENDED = os.environ.get("MENDED")
WORDS = 2048

model = PhiForCausalLM(
    PhiConfig(
        vocab_size=WORDS, hidden_size=512, num_hidden_layers=12, num_attention_heads=8,
        intermediate_size=2048, max_position_embeddings=512,
    )
).cuda()  # fmt: skip
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def evaluate():
    model.eval()
    with torch.no_grad():
        ids = torch.randint(0, WORDS, (8, 512), device="cuda")
        print("loss", model(ids, labels=ids, use_cache=False).loss.item())


model.train()
for step in range(5):
    ids = torch.randint(0, WORDS, (16, 512), device="cuda")
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        evaluate()
        if MENDED:
            model.train()
