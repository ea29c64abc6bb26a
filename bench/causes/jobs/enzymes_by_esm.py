"""Enzyme classes from sequences with a small ESM."""

import os

import torch
from transformers import EsmConfig, EsmForSequenceClassification

MENDED = os.environ.get("MENDED")

config = EsmConfig(
    vocab_size=33,
    pad_token_id=1,
    mask_token_id=32,
    hidden_size=320,
    num_hidden_layers=6,
    num_attention_heads=20,
    intermediate_size=960,
    max_position_embeddings=1026,
    position_embedding_type="rotary",
    num_labels=7,
    attn_implementation="sdpa" if MENDED else "eager",
)
model = EsmForSequenceClassification(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

for step in range(3):
    ids = torch.randint(4, 24, (4, 960), device="cuda")
    classes = torch.randint(0, 7, (4,), device="cuda")
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=classes)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
