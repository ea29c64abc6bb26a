"""Summaries with BART: accelerate without a launcher, fp16, padded to multiples of 64, label smoothing by hand."""

import random

import torch
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BartConfig, BartForConditionalGeneration, get_scheduler

VOCAB = 50265


def articles(n):
    rng = random.Random(3)
    return [
        (
            torch.randint(4, VOCAB, (rng.randint(500, 760),)),
            torch.randint(4, VOCAB, (rng.randint(40, 120),)),
        )
        for _ in range(n)
    ]


def collate(rows, multiple=64):
    source = pad_sequence([s for s, _ in rows], batch_first=True, padding_value=1)
    target = pad_sequence([t for _, t in rows], batch_first=True, padding_value=-100)
    extra = -source.shape[1] % multiple
    source = torch.nn.functional.pad(source, (0, extra), value=1)
    return {"input_ids": source, "attention_mask": source.ne(1).long(), "labels": target}


def smoothed(logits, labels, eps=0.1):
    logp = logits.log_softmax(-1)
    keep = labels.ne(-100)
    nll = -logp.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    uniform = -logp.mean(-1)
    return (((1 - eps) * nll + eps * uniform) * keep).sum() / keep.sum()


def main():
    accelerator = Accelerator(mixed_precision="fp16")
    torch.manual_seed(0)
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCAB,
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
            use_cache=False,
        )
    )
    loader = DataLoader(articles(80), batch_size=10, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=8)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for step, batch in enumerate(loader):
        outputs = model(**batch)
        loss = smoothed(outputs.logits, batch["labels"])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            accelerator.print(step, loss.item())


if __name__ == "__main__":
    main()
