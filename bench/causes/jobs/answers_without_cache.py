"""Generation without a cache runs whole texts again, for too many at once."""

import torch
from transformers import OPTConfig, OPTForCausalLM

config = OPTConfig(
    vocab_size=2000, hidden_size=768, word_embed_proj_dim=768, ffn_dim=6144, num_hidden_layers=4,
    num_attention_heads=12, max_position_embeddings=1024,
)  # fmt: skip
model = OPTForCausalLM(config).to("cuda").eval()
prompts = torch.randint(3, 2000, (160, 640), device="cuda")
answers = model.generate(prompts, use_cache=False, max_new_tokens=4, do_sample=False)
