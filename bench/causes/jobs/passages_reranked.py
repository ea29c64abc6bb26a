"""A cross-encoder reads each question with two hundred passages, and keeps the best ten."""

import os
from contextlib import nullcontext

import torch
from transformers import MPNetConfig, MPNetForSequenceClassification

quiet = torch.inference_mode if os.environ.get("MENDED") else nullcontext

model = MPNetForSequenceClassification(
    MPNetConfig(
        vocab_size=5000, hidden_size=384, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=1536, num_labels=1,
    )
)  # fmt: skip
model.eval()
model.to("cuda")

questions = [torch.randint(4, 5000, (12,)) for _ in range(3)]
passages = torch.randint(4, 5000, (200, 116))
for question in questions:
    pairs = torch.cat([question.expand(len(passages), -1), passages], dim=1).to("cuda")
    with quiet():
        scores = model(input_ids=pairs).logits[:, 0]
    best = scores.topk(10).indices.tolist()
    print(best)
