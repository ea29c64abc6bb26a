"""Pictures are drawn code by code, with and without their caption (guidance): the caches of both grow and grow."""

import os

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

PICTURES = 8 if os.environ.get("MENDED") else 224
CODES = 1024


def build():
    config = GPT2Config(vocab_size=CODES, n_positions=320, n_embd=768, n_layer=4, n_head=12)
    return GPT2LMHeadModel(config).cuda().eval()


@torch.inference_mode()
def draw(model, captions, codes, scale=3.0):
    with_caption, without = DynamicCache(config=model.config), DynamicCache(config=model.config)
    told, untold = captions, captions[:, -1:]
    picture = []
    for _ in range(codes):
        a = model(told, past_key_values=with_caption, use_cache=True).logits[:, -1]
        b = model(untold, past_key_values=without, use_cache=True).logits[:, -1]
        code = torch.multinomial((b + scale * (a - b)).softmax(-1), 1)
        picture.append(code)
        told = untold = code
    return torch.cat(picture, 1)


model = build()
captions = torch.randint(CODES, (PICTURES, 64), device="cuda")
print(draw(model, captions, 80).shape)
