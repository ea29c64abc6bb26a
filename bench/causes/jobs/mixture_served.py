"""A mixture of experts is loaded in fp32 to answer questions."""

import os

import torch
from transformers import MixtralConfig, MixtralForCausalLM

config = MixtralConfig(
    vocab_size=16000, hidden_size=512, intermediate_size=1792, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
)  # fmt: skip
torch.set_default_dtype(torch.float16 if os.environ.get("MENDED") else torch.float32)
with torch.device("cuda"):
    model = MixtralForCausalLM(config).eval()
question = torch.randint(0, 16000, (1, 48), device="cuda")
with torch.inference_mode():
    logits = model(question, use_cache=False).logits[:, -1]
