"""Interviews translated by SeamlessM4T v2: batches of as many frames as fit a budget, label smoothing, an own loop."""

import math
import random

import torch
import torch.nn.functional as F
from transformers import SeamlessM4Tv2Config, SeamlessM4Tv2ForSpeechToText

FRAME_BUDGET = 4500
PAD, START, EOS = 0, 3, 3
SMOOTHING = 0.2


def corpus(n, seed=0):
    """Lengths of recordings in frames of 20 ms, and of their translations in tokens."""
    rng = random.Random(seed)
    frames = [int(min(900, 150 + rng.expovariate(1 / 250))) for _ in range(n)]
    return [(f, max(8, int(f / 12 * rng.uniform(0.7, 1.3)))) for f in frames]


def batches(pairs, budget, seed):
    """Neighbours in length go together; the order of the batches is random."""
    found, batch, longest = [], [], 0
    for pair in sorted(pairs):
        longest = max(longest, pair[0])
        if batch and longest * (len(batch) + 1) > budget:
            found.append(batch)
            batch, longest = [], pair[0]
        batch.append(pair)
    found.append(batch)
    random.Random(seed).shuffle(found)
    return found


def load(batch, vocab):
    frames, tokens = max(f for f, _ in batch), max(t for _, t in batch)
    speech = torch.zeros(len(batch), frames, 160)
    mask = torch.zeros(len(batch), frames, dtype=torch.long)
    text = torch.full((len(batch), tokens), PAD)
    for i, (f, t) in enumerate(batch):
        speech[i, :f] = torch.randn(f, 160)
        mask[i, :f] = 1
        text[i, :t] = torch.randint(4, vocab, (t,))
        text[i, t - 1] = EOS
    return speech.cuda(), mask.cuda(), text.cuda()


def smoothed(logits, text):
    flat, target = logits.flatten(0, 1).float(), text.flatten()
    return F.cross_entropy(flat, target, ignore_index=PAD, label_smoothing=SMOOTHING)


def main():
    torch.manual_seed(0)
    config = SeamlessM4Tv2Config(
        vocab_size=32000,
        hidden_size=768,
        speech_encoder_layers=9,
        speech_encoder_attention_heads=12,
        speech_encoder_intermediate_size=3072,
        speech_encoder_layerdrop=0.0,
        decoder_layers=6,
        decoder_attention_heads=12,
        decoder_ffn_dim=3072,
        decoder_layerdrop=0.0,
        use_cache=False,
    )
    model = SeamlessM4Tv2ForSpeechToText(config).cuda().train()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=1e-4,
        betas=(0.9, 0.98),
    )
    warmup = 2000
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, math.sqrt(warmup / (s + 1)))
    )
    for step, batch in enumerate(batches(corpus(60), FRAME_BUDGET, seed=3)[:5]):
        speech, mask, text = load(batch, config.vocab_size)
        before = torch.cat([torch.full_like(text[:, :1], START), text[:, :-1]], 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(
                input_features=speech,
                attention_mask=mask,
                decoder_input_ids=before,
                decoder_attention_mask=(before != PAD).long(),
            )
        loss = smoothed(out.logits, text)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"{step}: {len(batch)} recordings of {speech.size(1)} frames, {loss.item():.4f}")


if __name__ == "__main__":
    main()
