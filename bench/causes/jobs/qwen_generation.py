"""Qwen answers many prompts at once; the cache grows with each token."""
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

config = Qwen2Config(
    vocab_size=4000, hidden_size=512, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip
model = Qwen2ForCausalLM(config).to("cuda", torch.float16).eval()
prompts = torch.randint(0, 4000, (96, 1500), device="cuda")
with torch.inference_mode():
    model.generate(prompts, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
