"""Captions are encoded for an index by CLIP's text tower, in eval mode but with gradients on."""

import contextlib
import os

import torch
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

guard = torch.no_grad() if os.environ.get("MENDED") else contextlib.nullcontext()

tower = CLIPTextModelWithProjection(
    CLIPTextConfig(
        vocab_size=10000, hidden_size=512, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=8, projection_dim=256,
    )
).cuda()  # fmt: skip
tower.eval()
index = []
for shelf in range(3):
    captions = torch.randint(0, 9999, (160, 77), device="cuda")
    with guard:
        vectors = tower(captions).text_embeds
    index.append(vectors.detach().cpu())
print(torch.cat(index).shape)
