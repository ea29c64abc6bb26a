"""Meetings to letters: Wav2Vec2-BERT (a conformer over stacked filter banks) with CTC, accelerate in bf16, an adapter of stride two, masked spans."""

import random

import torch
from accelerate import Accelerator
from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC, get_linear_schedule_with_warmup

VOCAB = "|'abcdefghijklmnopqrstuvwxyz"
PAD = len(VOCAB)


def make_meeting(seconds, rng):
    """Filter banks (frames of 20 ms, two stacked: 160 numbers) and a transcript of 12 letters a second."""
    frames = int(seconds * 50)
    return torch.randn(frames, 160), [rng.randrange(len(VOCAB)) for _ in range(int(seconds * 6))]


def collate(items):
    longest = max(f.shape[0] for f, _ in items)
    features = torch.zeros(len(items), longest, 160)
    mask = torch.zeros(len(items), longest, dtype=torch.long)
    labels = torch.full((len(items), max(len(t) for _, t in items)), -100)
    for i, (f, t) in enumerate(items):
        features[i, : len(f)] = f
        mask[i, : len(f)] = 1
        labels[i, : len(t)] = torch.tensor(t)
    return {"input_features": features, "attention_mask": mask, "labels": labels}


def main():
    rng = random.Random(7)
    torch.manual_seed(7)
    accelerator = Accelerator(mixed_precision="bf16")
    data = [make_meeting(rng.uniform(9, 15), rng) for _ in range(64)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=12, shuffle=True, collate_fn=collate, drop_last=True
    )
    config = Wav2Vec2BertConfig(
        vocab_size=PAD + 1,
        pad_token_id=PAD,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        output_hidden_size=768,
        add_adapter=True,
        adapter_stride=2,
        mask_time_prob=0.05,
        mask_time_length=10,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        layerdrop=0.0,
    )
    with accelerator.device:
        model = Wav2Vec2BertForCTC(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    step = 0
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        accelerator.print("step", step, "ctc", loss.item())


main()
