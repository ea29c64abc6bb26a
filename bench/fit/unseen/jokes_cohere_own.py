"""Set-ups and punch lines: a small Cohere model, only the punch line counts in the loss, own loop with cosine rate and a validation."""

import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import CohereConfig, CohereForCausalLM


@dataclass
class Settings:
    steps: int = int(os.environ.get("JOB_STEPS", "5"))
    batch: int = 2
    length: int = 384
    vocab: int = 32_000
    peak_lr: float = 1e-4
    warmup: int = 2
    horizon: int = 100


def jokes(s, generator):
    ids = torch.randint(8, s.vocab, (s.batch, s.length), generator=generator)
    split = torch.randint(s.length // 2, s.length - 32, (s.batch, 1), generator=generator)
    labels = torch.where(torch.arange(s.length) < split, -100, ids)
    return ids, labels


def punchline_loss(model, ids, labels):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100
    )


def rate(s, step):
    if step < s.warmup:
        return s.peak_lr * (step + 1) / s.warmup
    return s.peak_lr * 0.5 * (1 + math.cos(math.pi * (step - s.warmup) / s.horizon))


def main(s=Settings()):
    torch.manual_seed(9)
    generator = torch.Generator().manual_seed(9)
    with torch.device("cuda"):
        model = CohereForCausalLM(
            CohereConfig(
                vocab_size=s.vocab,
                hidden_size=1024,
                intermediate_size=3584,
                num_hidden_layers=18,
                num_attention_heads=16,
                num_key_value_heads=8,
                use_qk_norm=True,
                max_position_embeddings=1024,
                logit_scale=0.0625,
                tie_word_embeddings=True,
            )
        )
    model.train()
    print(f"{model.num_parameters() / 1e6:.0f} M parameters")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=s.peak_lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    for step in range(s.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(s, step)
        ids, labels = (t.cuda() for t in jokes(s, generator))
        loss = punchline_loss(model, ids, labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: loss {loss.item():.3f}, norm {norm.item():.2f}")
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                ids, labels = (t.cuda() for t in jokes(s, generator))
                print(f"  perplexity {punchline_loss(model, ids, labels).exp().item():.1f}")
            model.train()


if __name__ == "__main__":
    main()
