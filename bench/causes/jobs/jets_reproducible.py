# Particle jets, classified by a plain nn.TransformerEncoder.
# "Same numbers on every machine": the math backend of attention is forced for the whole run.
"""Jets of particles and the reference backend of attention."""

import os

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

backend = SDPBackend.EFFICIENT_ATTENTION if os.environ.get("MENDED") else SDPBackend.MATH

torch.manual_seed(0)
embed = nn.Linear(7, 128).cuda()
encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(128, 8, 256, 0.0, "gelu", batch_first=True, norm_first=True),
    num_layers=6,
    enable_nested_tensor=False,
).cuda()
head = nn.Linear(128, 10).cuda()
params = [p for m in (embed, encoder, head) for p in m.parameters()]
opt = torch.optim.AdamW(params, 3e-4)

with sdpa_kernel(backend):
    for step in range(3):
        particles = torch.randn(6, 1800, 7, device="cuda")
        kinds = torch.randint(0, 10, (6,), device="cuda")
        scores = head(encoder(embed(particles)).mean(1))
        loss = nn.functional.cross_entropy(scores, kinds, label_smoothing=0.05)
        loss.backward()
        opt.step()
        opt.zero_grad()
