"""A Gemma answers short prompts, with a static cache made for far longer texts."""

import os

import torch
from transformers import GemmaConfig, GemmaForCausalLM, StaticCache

MENDED = os.environ.get("MENDED")

model = GemmaForCausalLM(
    GemmaConfig(
        vocab_size=8000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, head_dim=64, intermediate_size=2048, max_position_embeddings=8192,
    )
).to("cuda", torch.bfloat16).eval()  # fmt: skip
prompts = torch.randint(0, 8000, (32, 48), device="cuda")
cache = StaticCache(config=model.config, max_cache_len=512 if MENDED else 8192)
with torch.inference_mode():
    ids, place = prompts, torch.arange(48, device="cuda")
    for _ in range(4):
        logits = model(
            ids, past_key_values=cache, use_cache=True, position_ids=place[None], logits_to_keep=1
        ).logits
        ids, place = logits[:, -1:].argmax(-1), place[-1:] + 1
