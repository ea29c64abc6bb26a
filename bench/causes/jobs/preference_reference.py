"""Preference tuning: the reference model's scores are made with a graph."""

import contextlib
import copy
import os

import torch
import torch.nn.functional as F
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

MENDED = os.environ.get("MENDED")
WORDS = 4096


def score(model, ids, prompt=64):
    """The log-probability of each answer."""
    chances = model(ids).logits[:, prompt - 1 : -1].log_softmax(-1)
    return chances.gather(-1, ids[:, prompt:, None]).sum((1, 2))


policy = GPTNeoXForCausalLM(
    GPTNeoXConfig(
        vocab_size=WORDS, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
        intermediate_size=2048, max_position_embeddings=512,
    )
).cuda()  # fmt: skip
reference = copy.deepcopy(policy).eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
for step in range(2):
    chosen, rejected = torch.randint(0, WORDS, (2, 8, 320), device="cuda")
    ids = torch.cat([chosen, rejected])
    with torch.no_grad() if MENDED else contextlib.nullcontext():
        before = score(reference, ids)
    after = score(policy, ids)
    better, worse = (after - before).chunk(2)
    loss = -F.logsigmoid(0.1 * (better - worse)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
