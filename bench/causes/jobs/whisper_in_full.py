"""A speech model learns one dialect; it is trained in full, one recording at a time, by plain SGD."""

import os

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

dtype = torch.bfloat16 if os.environ.get("MENDED") else torch.float32
config = WhisperConfig(
    vocab_size=8000, d_model=1024, encoder_layers=10, decoder_layers=10, encoder_attention_heads=16,
    decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096,
    max_source_positions=500, max_target_positions=64, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, decoder_start_token_id=3,
)  # fmt: skip
with torch.device("cuda"):
    model = WhisperForConditionalGeneration(config).to(dtype)
model.train()
sgd = torch.optim.SGD(model.parameters(), lr=1e-5, foreach=False)
for recording in range(4):
    features = torch.randn(1, 80, 1000, device="cuda", dtype=dtype)
    said = torch.randint(4, 8000, (1, 24), device="cuda")
    model(input_features=features, labels=said).loss.backward()
    sgd.step()
    sgd.zero_grad(set_to_none=False)
