"""A Mistral whose weights and gradients alone are too much for the GPU."""

import torch
from transformers import MistralConfig, MistralForCausalLM

config = MistralConfig(
    vocab_size=16000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=4,
)  # fmt: skip
with torch.device("cuda"):
    model = MistralForCausalLM(config)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
for _ in range(2):
    ids = torch.randint(0, 16000, (1, 16), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
