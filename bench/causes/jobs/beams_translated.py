"""A translator searches with many beams; the decoder's cache holds them all."""

import torch
from transformers import BartConfig, BartForConditionalGeneration

config = BartConfig(
    vocab_size=3000, d_model=512, encoder_layers=2, decoder_layers=6, encoder_attention_heads=8,
    decoder_attention_heads=8, encoder_ffn_dim=512, decoder_ffn_dim=512, max_position_embeddings=300,
)  # fmt: skip
model = BartForConditionalGeneration(config).half().cuda().eval()
source = torch.randint(3, 3000, (24, 100), device="cuda")
translated = model.generate(
    source,
    num_beams=8,
    max_new_tokens=250,
    min_new_tokens=250,
    do_sample=False,
    early_stopping=False,
)
