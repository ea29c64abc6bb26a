"""Which layer knows that a number is odd? The states of all layers are collected for probes, and every token of them stays on the GPU."""

import os
from collections import defaultdict

import torch
from torch import nn
from transformers import StableLmConfig, StableLmModel

MENDED = os.environ.get("MENDED")


def language_model():
    config = StableLmConfig(
        vocab_size=5000, hidden_size=512, intermediate_size=1024, num_hidden_layers=10,
        num_attention_heads=8, num_key_value_heads=8,
    )  # fmt: skip
    return StableLmModel(config).cuda().eval()


def collect(model, sentences):
    """The states of each layer, and whether the number was odd."""
    states, odd = defaultdict(list), []
    for ids, answers in sentences:
        with torch.inference_mode():
            out = model(ids.cuda(), output_hidden_states=True, use_cache=False)
        for layer, h in enumerate(out.hidden_states):
            states[layer].append(h[:, -1].cpu() if MENDED else h)
        odd.append(answers)
    return states, torch.cat(odd)


def probe(x, y, steps=20):
    line = nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.Adam(line.parameters(), lr=0.05)
    for _ in range(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(line(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ((line(x).squeeze(1) > 0) == (y > 0.5)).float().mean().item()


def sentences(batches=45, batch=12, words=160):
    for _ in range(batches):
        ids = torch.randint(0, 5000, (batch, words))
        yield ids, (ids[:, 7] % 2).float()


states, odd = collect(language_model(), sentences())
for layer, h in states.items():
    last = torch.cat([rows if MENDED else rows[:, -1].cpu() for rows in h])
    print(layer, probe(last.clone(), odd))
