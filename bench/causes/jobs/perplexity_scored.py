"""The perplexity of held-out text under a small Pythia, in eval mode but with gradients on."""

import contextlib
import math
import os

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

quiet = torch.no_grad() if os.environ.get("MENDED") else contextlib.nullcontext()


def held_out(pieces, length):
    for _ in range(pieces):
        yield torch.randint(0, 4096, (24, length))


def perplexity(model, texts, device):
    model.eval()
    total, count = 0.0, 0
    for ids in texts:
        ids = ids.to(device)
        loss = model(ids, labels=ids, use_cache=False).loss
        total += loss.item() * ids.numel()
        count += ids.numel()
    return math.exp(min(total / count, 20))


model = GPTNeoXForCausalLM(
    GPTNeoXConfig(
        vocab_size=4096, hidden_size=512, num_hidden_layers=10, num_attention_heads=8,
        intermediate_size=2048, max_position_embeddings=1024,
    )
).to("cuda")  # fmt: skip
with quiet:
    print(perplexity(model, held_out(4, 512), "cuda"))
