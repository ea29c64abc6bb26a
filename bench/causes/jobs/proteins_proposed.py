"""Variants of an enzyme are proposed by a language model of proteins: many at once, each with the keys and values of the whole family before it."""

import os

import torch
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
TOKENS = {letter: n for n, letter in enumerate(("<pad>", "<start>", "<end>", "/", *ALPHABET))}
LETTERS = {n: letter for letter, n in TOKENS.items()}
AT_ONCE = 44 if os.environ.get("MENDED") else 128
WANTED = 128


def encode(sequences):
    ids = [TOKENS["<start>"]]
    for sequence in sequences:
        ids += [TOKENS[letter] for letter in sequence] + [TOKENS["/"]]
    return torch.tensor(ids)


def decode(ids):
    return "".join(LETTERS.get(int(n), "?") for n in ids)


def relatives(count=6, length=40):
    g = torch.Generator().manual_seed(11)
    picks = torch.randint(len(ALPHABET), (count, length), generator=g)
    return ["".join(ALPHABET[n] for n in row) for row in picks]


def load():
    config = MistralConfig(
        vocab_size=len(TOKENS),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        sliding_window=None,
        bos_token_id=TOKENS["<start>"],
        eos_token_id=None,
        pad_token_id=TOKENS["<pad>"],
    )
    with torch.device("cuda"):
        model = MistralForCausalLM(config)
    return model.half().eval()


def hydrophobic(sequence):
    return sum(letter in "AVILMFWY" for letter in sequence) / max(len(sequence), 1)


model = load()
family = encode(relatives()).unsqueeze(0).cuda()
proposals = []
for _ in range(0, WANTED, AT_ONCE):
    out = model.generate(
        family,
        attention_mask=torch.ones_like(family),
        generation_config=GenerationConfig(
            do_sample=True,
            temperature=0.8,
            top_p=0.95,
            max_new_tokens=6,
            num_return_sequences=AT_ONCE,
            pad_token_id=TOKENS["<pad>"],
        ),
    )
    proposals += [decode(row) for row in out[:, family.shape[1] :].cpu()]

proposals.sort(key=hydrophobic)
print(len(proposals), "proposals, the first:", proposals[0])
