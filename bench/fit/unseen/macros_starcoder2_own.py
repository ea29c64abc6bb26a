"""Macros filled in in the middle by a small StarCoder2: several files packed into a row, kept apart by a four-dimensional mask and positions that start anew, own loop, bf16 autocast, fused AdamW."""

import random

import torch
import torch.nn.functional as F
from transformers import Starcoder2Config, Starcoder2ForCausalLM

random.seed(90)
PREFIX, SUFFIX, MIDDLE, END = 1, 2, 3, 4
ROW = 768

config = Starcoder2Config(
    vocab_size=18_000,
    hidden_size=704,
    intermediate_size=2816,
    num_hidden_layers=9,
    num_attention_heads=11,
    num_key_value_heads=1,
    sliding_window=None,
    residual_dropout=0.1,
    embedding_dropout=0.1,
    use_cache=False,
)
model = Starcoder2ForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)


def macro():
    text = [random.randrange(5, config.vocab_size) for _ in range(random.randint(60, 300))]
    if random.random() < 0.5:
        return [*text, END]
    a, b = sorted(random.sample(range(len(text)), 2))
    return [PREFIX, *text[:a], SUFFIX, *text[b:], MIDDLE, *text[a:b], END]


def packed_row():
    ids, owner, place = [], [], []
    while len(ids) < ROW + 1:
        m = macro()
        owner += [len(set(owner))] * len(m)
        place += range(len(m))
        ids += m
    return [torch.tensor(x[: ROW + 1]) for x in (ids, owner, place)]


causal = torch.ones(ROW, ROW, dtype=torch.bool).tril()
for step in range(5):
    ids, owner, place = (torch.stack(x) for x in zip(*(packed_row() for _ in range(8))))
    apart = owner[:, :ROW, None] == owner[:, None, :ROW]
    allowed = (apart & causal)[:, None]
    labels = ids[:, 1:].masked_fill(owner[:, 1:] != owner[:, :-1], -100)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(
            input_ids=ids[:, :ROW].cuda(),
            attention_mask=allowed.cuda(),
            position_ids=place[:, :ROW].cuda(),
        ).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.cuda().flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{step} loss {loss.item():.3f} norm {norm.item():.2f} macros {int(owner.max()) + 1}")
