"""Falcon answers one short question; its weights are in fp32 and do not fit."""

import os

import torch
from transformers import FalconConfig, FalconForCausalLM

MENDED = os.environ.get("MENDED")

config = FalconConfig(
    vocab_size=32000, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
    new_decoder_architecture=False, multi_query=True, parallel_attn=True,
)  # fmt: skip
torch.set_default_dtype(torch.bfloat16 if MENDED else torch.float32)
with torch.device("cuda"):
    model = FalconForCausalLM(config).eval()
with torch.inference_mode():
    question = torch.randint(0, 32000, (1, 40), device="cuda")
    print(model(question, use_cache=False).logits[0, -1].argmax().item())
