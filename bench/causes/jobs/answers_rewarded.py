"""A reward model from pairs of answers (Bradley-Terry), every weight tuned with plain SGD."""

import os

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForSequenceClassification

MENDED = os.environ.get("MENDED")


def build():
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        num_labels=1,
        pad_token_id=0,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16 if MENDED else torch.float32)
    with torch.device("cuda"):
        model = LlamaForSequenceClassification(config)
    torch.set_default_dtype(torch.float32)
    return model


model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    chosen = torch.randint(3, 32000, (1, 64), device="cuda")
    rejected = torch.randint(3, 32000, (1, 64), device="cuda")
    better = model(input_ids=chosen).logits.squeeze(-1)
    worse = model(input_ids=rejected).logits.squeeze(-1)
    loss = -F.logsigmoid((better - worse).float()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
