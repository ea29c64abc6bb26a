"""BERT with eager attention on long inputs."""
import torch
from transformers import BertConfig, BertModel

config = BertConfig(
    hidden_size=384, num_hidden_layers=8, num_attention_heads=12, intermediate_size=768,
    max_position_embeddings=1024, attn_implementation="eager",
)  # fmt: skip
model = BertModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    ids = torch.randint(0, 30000, (8, 1024), device="cuda")
    loss = model(input_ids=ids).last_hidden_state.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
