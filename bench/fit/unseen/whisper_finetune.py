"""Whisper from a configuration: spectrogram to text; the encoder's convolutions are frozen."""

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import WhisperConfig, WhisperForConditionalGeneration


class Speech(IterableDataset):
    def __iter__(self):
        for k in range(30):
            yield {
                "input_features": torch.randn(80, 3000),
                "labels": torch.randint(10, 8000, (60 + k % 20,)),
            }


class Collator:
    def __call__(self, features):
        labels = torch.nn.utils.rnn.pad_sequence(
            [f["labels"] for f in features], batch_first=True, padding_value=-100
        )
        return {
            "input_features": torch.stack([f["input_features"] for f in features]),
            "labels": labels,
        }


config = WhisperConfig(
    vocab_size=8100, d_model=384, encoder_layers=6, decoder_layers=6, encoder_attention_heads=6,
    decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None,
    begin_suppress_tokens=None, use_cache=False, dropout=0.1,
)  # fmt: skip
model = WhisperForConditionalGeneration(config)
for name, p in model.named_parameters():
    if ".encoder.conv" in name:
        p.requires_grad_(False)
model.cuda().train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-5)
for step, batch in enumerate(DataLoader(Speech(), batch_size=6, collate_fn=Collator())):
    batch = {k: v.cuda() for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
