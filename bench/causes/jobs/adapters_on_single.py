"""Low-rank adapters for a code model. The base is frozen, and was read in single precision."""

import math
import os

import torch
from torch import nn
from transformers import Starcoder2Config, Starcoder2ForCausalLM

BASE_DTYPE = torch.bfloat16 if os.environ.get("MENDED") else torch.float32


class LoRA(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        kind = dict(dtype=base.weight.dtype, device=base.weight.device)
        self.a = nn.Parameter(torch.empty(rank, base.in_features, **kind))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, **kind))
        nn.init.kaiming_uniform_(self.a, math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T) @ self.b.T * self.scale


def adapt(model, names=("q_proj", "v_proj")):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, LoRA(child))
    return [p for p in model.parameters() if p.requires_grad]


def base_model():
    config = Starcoder2Config(
        vocab_size=4096, hidden_size=1536, intermediate_size=6144, num_hidden_layers=20,
        num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(BASE_DTYPE)
    try:
        with torch.device("cuda"):
            return Starcoder2ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


model = base_model()
trainable = adapt(model)
optimizer = torch.optim.AdamW(trainable, lr=2e-4)
print(f"{sum(p.numel() for p in trainable):,} of {sum(p.numel() for p in model.parameters()):,}")
for step in range(3):
    ids = torch.randint(0, 4096, (1, 128), device="cuda")
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
