"""Questions about tables are answered with many beams, each of which has a cache."""

import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

BEAMS = 2 if os.environ.get("MENDED") else 24
config = Qwen2Config(
    vocab_size=4000, hidden_size=512, intermediate_size=1024, num_hidden_layers=10, num_attention_heads=8,
    num_key_value_heads=8, max_position_embeddings=1024, eos_token_id=None, bos_token_id=1, pad_token_id=0,
)  # fmt: skip
with torch.device("cuda"):
    model = Qwen2ForCausalLM(config).half().eval()
tables = torch.randint(2, 4000, (4, 300), device="cuda")
model.generate(
    tables,
    attention_mask=torch.ones_like(tables),
    num_beams=BEAMS,
    max_new_tokens=30,
    do_sample=False,
)
