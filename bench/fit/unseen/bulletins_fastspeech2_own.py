"""Weather bulletins spoken by FastSpeech2 with conformer blocks: durations stretch letters to frames, pitch and energy predicted, own loop, speakers, fp32, warm-up by hand."""

import torch
from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

device = torch.device("cuda")
config = FastSpeech2ConformerConfig(
    hidden_size=320,
    vocab_size=70,
    encoder_linear_units=1280,
    decoder_linear_units=1280,
    encoder_layers=4,
    decoder_layers=5,
    num_speakers=24,
    speaker_embed_dim=None,
)
model = FastSpeech2ConformerModel(config).to(device)
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)


def bulletins(n):
    letters = torch.randint(60, 110, (n,))
    width = int(letters.max())
    inside = torch.arange(width)[None] < letters[:, None]
    duration = torch.randint(3, 9, (n, width)) * inside
    frames = duration.sum(1)
    mel = torch.randn(n, int(frames.max()), config.num_mel_bins)
    mel[torch.arange(mel.shape[1])[None] >= frames[:, None]] = -100
    return {
        "input_ids": torch.randint(1, config.vocab_size, (n, width)) * inside,
        "attention_mask": inside.long(),
        "spectrogram_labels": mel,
        "duration_labels": duration,
        "pitch_labels": torch.randn(n, width, 1),
        "energy_labels": torch.randn(n, width, 1).abs(),
        "speaker_ids": torch.randint(0, 24, (n, 1)),
    }


for step in range(1, 6):
    for group in optimizer.param_groups:
        group["lr"] = 320**-0.5 * min(step**-0.5, step * 400**-1.5)
    batch = {k: v.to(device) for k, v in bulletins(20).items()}
    out = model(**batch)
    optimizer.zero_grad()
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, batch["spectrogram_labels"].shape[1], "frames", f"{out.loss.item():.3f}")
