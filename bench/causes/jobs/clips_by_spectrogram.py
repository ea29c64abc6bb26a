"""Sounds are told apart by a spectrogram transformer whose attention is the eager one."""

import os

import torch
from transformers import ASTConfig, ASTForAudioClassification

config = ASTConfig(
    hidden_size=192, num_hidden_layers=6, num_attention_heads=6, intermediate_size=384,
    max_length=1024, num_mel_bins=128, num_labels=50,
    attn_implementation="sdpa" if os.environ.get("MENDED") else "eager",
)  # fmt: skip
model = ASTForAudioClassification(config).to("cuda")
model.train()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for _ in range(2):
    sound = torch.randn(4, 1024, 128, device="cuda")
    label = torch.randint(0, 50, (4,), device="cuda")
    out = model(input_values=sound, labels=label)
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
