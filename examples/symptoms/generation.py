"""48 answers at once, each with a prompt of 2000 tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=5504,
    num_hidden_layers=16,
    num_attention_heads=16,
    attn_implementation="sdpa",
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(32000, (48, 2000))
model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
