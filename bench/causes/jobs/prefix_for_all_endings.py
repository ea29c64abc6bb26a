"""A long prefix is read once, and its keys and values are copied for each of the many endings to be compared."""

import copy
import os

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

AT_ONCE = 6 if os.environ.get("MENDED") else 120
config = LlamaConfig(
    vocab_size=2000, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048,
)  # fmt: skip


class Reader:
    def __init__(self):
        self.model = LlamaForCausalLM(config).cuda().eval()
        self.prefix = DynamicCache(config=config)

    def read(self, ids):
        self.model(ids, past_key_values=self.prefix, use_cache=True, logits_to_keep=1)

    def score(self, endings):
        cache = copy.deepcopy(self.prefix)
        cache.batch_repeat_interleave(len(endings))
        logits = self.model(endings, past_key_values=cache, use_cache=True).logits
        found = logits[:, :-1].log_softmax(-1).gather(2, endings[:, 1:, None])
        return found.sum((1, 2))


with torch.no_grad():
    reader = Reader()
    reader.read(torch.randint(2000, (1, 1024), device="cuda"))
    endings = torch.randint(2000, (120, 12), device="cuda")
    scores = torch.cat([reader.score(part) for part in endings.split(AT_ONCE)])
    print(scores.argmax().item())
