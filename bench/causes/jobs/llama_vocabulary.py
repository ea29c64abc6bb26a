"""A small Llama with 128 thousand tokens."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def batches():
    for _ in range(3):
        yield torch.randint(0, 128000, (4, 1024), device="cuda")


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=128256, hidden_size=384, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=6, num_key_value_heads=2,
    )  # fmt: skip
).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for ids in batches():
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
