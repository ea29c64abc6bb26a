"""Telephone calls to letters: Wav2Vec2 with CTC, the convolutional front frozen, waveforms of up to ten seconds, fp32."""

import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, get_linear_schedule_with_warmup

RATE = 16_000


def make_batch(rng, size, vocab):
    seconds = rng.uniform(6, 10, size)
    length = int(seconds.max() * RATE)
    audio = np.zeros((size, length), dtype=np.float32)
    mask = np.zeros((size, length), dtype=np.int64)
    labels = np.full((size, 120), -100, dtype=np.int64)
    for row, s in enumerate(seconds):
        n = int(s * RATE)
        audio[row, :n] = rng.standard_normal(n)
        mask[row, :n] = 1
        letters = int(s * 11)
        labels[row, :letters] = rng.integers(1, vocab, letters)
    return torch.from_numpy(audio), torch.from_numpy(mask), torch.from_numpy(labels)


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    rng = np.random.default_rng(0)
    config = Wav2Vec2Config(
        vocab_size=40,
        num_hidden_layers=10,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        mask_time_prob=0.05,
        layerdrop=0.0,
        pad_token_id=0,
    )
    model = Wav2Vec2ForCTC(config).to("cuda")
    model.freeze_feature_encoder()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 100)

    for step in range(6):
        audio, mask, labels = make_batch(rng, 8, config.vocab_size)
        out = model(input_values=audio.cuda(), attention_mask=mask.cuda(), labels=labels.cuda())
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"{step:3d} ctc {out.loss.item():.4f}")


if __name__ == "__main__":
    main()
