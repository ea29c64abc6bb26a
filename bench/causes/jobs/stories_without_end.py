"""Opening lines become stories, a hundred and twelve at once. Nothing ends a story but the limit of words, and that is the whole context."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

WORDS = 40 if os.environ.get("MENDED") else 900


class Storyteller:
    def __init__(self):
        self.config = GPT2Config(
            vocab_size=4000, n_positions=1024, n_embd=512, n_layer=6, n_head=8,
            bos_token_id=0, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(self.config).cuda().eval()

    def go_on(self, openings):
        return self.model.generate(
            openings,
            attention_mask=torch.ones_like(openings),
            do_sample=True,
            top_k=40,
            temperature=0.9,
            max_new_tokens=WORDS,
            use_cache=True,
        )


def openings(count=112, words=90, seed=5):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, 4000, (count, words), generator=g)


teller = Storyteller()
for night in range(2):
    lines = openings(seed=night).cuda()
    with torch.inference_mode():
        stories = teller.go_on(lines)
    print(night, tuple(stories.shape), stories[0, :5].tolist())
