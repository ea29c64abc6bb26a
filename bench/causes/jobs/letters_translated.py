"""Translates old letters in small batches; the service starts the model and answers."""

import os

import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration

MENDED = os.environ.get("MENDED")


class Translator:
    def __init__(self, device="cuda"):
        config = M2M100Config(
            vocab_size=128112,
            d_model=1024,
            encoder_layers=8,
            decoder_layers=8,
            encoder_ffn_dim=4096,
            decoder_ffn_dim=4096,
            encoder_attention_heads=16,
            decoder_attention_heads=16,
        )
        model = M2M100ForConditionalGeneration(config).eval()
        if MENDED:
            model = model.half()
        self.model = model.to(device)
        self.device = device

    @torch.inference_mode()
    def __call__(self, ids):
        ids = ids.to(self.device)
        mask = torch.ones_like(ids)
        return self.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=6, num_beams=1, do_sample=False
        ).cpu()


if __name__ == "__main__":
    torch.manual_seed(0)
    translate = Translator()
    for letter in range(3):
        sentences = torch.randint(5, 128000, (4, 40))
        print(letter, translate(sentences).shape)
