"""OLMo reads long documents piece by piece; the cache holds every piece for every document."""

import os

import torch
from transformers import DynamicCache, OlmoConfig, OlmoForCausalLM

MENDED = os.environ.get("MENDED")
PIECE, PIECES, DOCUMENTS = 128, 24, 16

olmo = OlmoForCausalLM(
    OlmoConfig(
        vocab_size=5000, hidden_size=768, intermediate_size=2048, num_hidden_layers=10,
        num_attention_heads=12, max_position_embeddings=8192,
    )
).to("cuda", torch.float16)  # fmt: skip
olmo.eval()
cache = DynamicCache(config=olmo.config)
with torch.inference_mode():
    for k in range(PIECES):
        if MENDED and k % 6 == 0:
            cache = DynamicCache(config=olmo.config)
        piece = torch.randint(0, 5000, (DOCUMENTS, PIECE), device="cuda")
        answer = olmo(piece, past_key_values=cache, use_cache=True, logits_to_keep=1)
print(answer.logits.shape)
