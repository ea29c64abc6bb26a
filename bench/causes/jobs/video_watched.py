"""A model watches videos picture by picture and could be asked at any time; it forgets nothing it has seen."""

import os

import torch
from torch import nn
from transformers import GraniteConfig, GraniteModel
from transformers.cache_utils import DynamicCache

FORGET_AFTER = 6 if os.environ.get("MENDED") else None
TOKENS, VIDEOS, PICTURES = 196, 6, 30


class Watcher(nn.Module):
    def __init__(self):
        super().__init__()
        config = GraniteConfig(
            vocab_size=2000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8,
            num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=16384,
        )  # fmt: skip
        self.patches = nn.Conv2d(3, 1024, 16, 16)
        self.language = GraniteModel(config)
        self.answer = nn.Linear(1024, 2000)

    def watch(self, picture, cache):
        tokens = self.patches(picture).flatten(2).transpose(1, 2)
        return self.language(inputs_embeds=tokens, past_key_values=cache, use_cache=True)

    def ask(self, words, cache):
        seen = self.language(input_ids=words, past_key_values=cache, use_cache=True)
        return self.answer(seen.last_hidden_state[:, -1]).argmax(-1)


watcher = Watcher().half().cuda().eval()
cache = DynamicCache()
with torch.no_grad():
    for n in range(PICTURES):
        watcher.watch(torch.zeros(VIDEOS, 3, 224, 224, device="cuda", dtype=torch.float16), cache)
        if FORGET_AFTER and n % FORGET_AFTER == FORGET_AFTER - 1:
            cache = DynamicCache()
    print(watcher.ask(torch.zeros(VIDEOS, 12, device="cuda", dtype=torch.long), cache).tolist())
