"""A multiple-choice exam: the likelihood of each letter after the question. Nothing is generated, yet keys and values of all questions are kept."""

import os
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

OPTIONS = {"use_cache": False} if os.environ.get("MENDED") else {}
LETTERS = torch.tensor([319, 350, 315, 360])


def load():
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=16,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    return model.half().eval()


def exam(subjects=("anatomy", "law"), questions=32, length=1024):
    """Five worked examples and a question each, of one length; and which letter is right."""
    for n, subject in enumerate(subjects):
        g = torch.Generator().manual_seed(n)
        ids = torch.randint(400, 8000, (questions, length), generator=g)
        yield subject, ids, torch.randint(4, (questions,), generator=g)


@torch.inference_mode()
def choose(model, ids):
    out = model(input_ids=ids.cuda(), logits_to_keep=1, **OPTIONS)
    likelihoods = out.logits[:, -1].float().log_softmax(-1)
    return likelihoods[:, LETTERS.cuda()].argmax(-1).cpu()


def main():
    model, began = load(), time.time()
    marks = {}
    for subject, ids, key in exam():
        marks[subject] = (choose(model, ids) == key).float().mean().item()
        print(f"{subject:12} {marks[subject]:.2f}")
    print(f"mean {sum(marks.values()) / len(marks):.2f} in {time.time() - began:.1f} s")


main()
