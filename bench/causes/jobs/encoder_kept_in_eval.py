"""Checkpointing is on, but the encoder is put into eval() to be rid of its dropout, and trained all the same."""

import os

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

config = Wav2Vec2Config(
    hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536,
    conv_dim=(128,) * 7, num_labels=12, classifier_proj_size=64, apply_spec_augment=False,
    layerdrop=0.0,
)  # fmt: skip
model = Wav2Vec2ForSequenceClassification(config).cuda()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.freeze_feature_encoder()
model.train()
if not os.environ.get("MENDED"):
    model.wav2vec2.encoder.eval()
optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), 1e-3)
for _ in range(2):
    sound = torch.randn(8, 160_000, device="cuda")
    speaker = torch.randint(0, 12, (8,), device="cuda")
    loss = model(input_values=sound, labels=speaker).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
