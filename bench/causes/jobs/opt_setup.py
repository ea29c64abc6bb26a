"""A language model whose weights alone are larger than the GPU."""
import torch
from transformers import OPTConfig, OPTForCausalLM

config = OPTConfig(
    hidden_size=2048, ffn_dim=8192, num_hidden_layers=12, num_attention_heads=32,
    word_embed_proj_dim=2048,
)  # fmt: skip
with torch.device("meta"):
    model = OPTForCausalLM(config)
model = model.to_empty(device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = torch.randint(0, 50000, (1, 64), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
