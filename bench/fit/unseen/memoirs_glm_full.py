"""Full fine-tuning of a GLM of about a billion weights on memoirs, fp32 weights under bf16.

Short packed pieces (a batch of 4 x 512 tokens, twice per step); most of the memory is weights,
gradients and Adam.
"""

import json
import math
import os
import tempfile

import torch
from transformers import GlmConfig, GlmForCausalLM

STEPS = int(os.environ.get("JOB_STEPS", "5"))
SEQ = 512
MICRO = 4
ACCUMULATE = 2
LR = 1e-5
MIN_LR = 1e-6
WARMUP = 2
EOS = 2


def packed_stream(seed):
    """Chapters of any length, one after the other, cut into rows of SEQ + 1."""
    g = torch.Generator().manual_seed(seed)
    left = torch.empty(0, dtype=torch.long)
    while True:
        while len(left) < MICRO * SEQ:
            n = int(torch.randint(80, 1500, (1,), generator=g))
            chapter = torch.randint(3, 32_000, (n,), generator=g)
            left = torch.cat([left, chapter, torch.tensor([EOS])])
        yield left[: MICRO * SEQ].view(MICRO, SEQ)
        left = left[MICRO * SEQ :]


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    t = min(1.0, (step - WARMUP) / 1000)
    return MIN_LR + 0.5 * (LR - MIN_LR) * (1 + math.cos(math.pi * t))


def build():
    config = GlmConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=20,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=2048,
        pad_token_id=0,
        eos_token_id=EOS,
        tie_word_embeddings=True,
        attention_bias=True,
        use_cache=False,
    )
    with torch.device("cuda"):
        return GlmForCausalLM(config)


def evaluate(model, batches):
    model.eval()
    total = 0.0
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for ids in batches:
            ids = ids.cuda()
            total += model(input_ids=ids, labels=ids).loss.item()
    model.train()
    return total / len(batches)


def main():
    torch.manual_seed(2024)
    torch.set_float32_matmul_precision("high")
    model = build()
    model.train()
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e9:.2f} B parameters")

    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=LR,
        betas=(0.9, 0.95),
        eps=1e-8,
    )

    train, held_out = packed_stream(0), packed_stream(1)
    validation = [next(held_out) for _ in range(2)]
    history = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        summed = 0.0
        for _ in range(ACCUMULATE):
            ids = next(train).to("cuda", non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss / ACCUMULATE
            loss.backward()
            summed += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append(summed)
        print(f"step {step} | loss {summed:.4f} | norm {norm.item():.3f}")
        if (step + 1) % 5 == 0:
            print(f"  validation {evaluate(model, validation):.4f}")

    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
