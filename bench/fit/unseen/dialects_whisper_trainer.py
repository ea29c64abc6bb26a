"""Whisper-small on dialects with Seq2SeqTrainer: fp16, 30 s of mel frames, labels of many lengths, accumulation of two."""

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


class Speech(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        return {
            "input_features": torch.randn(80, 3000),
            "labels": torch.randint(0, 30000, (40 + 7 * (i % 9),)),
        }


@dataclass
class Collator:
    pad: int = -100

    def __call__(self, features):
        labels = torch.nn.utils.rnn.pad_sequence(
            [f["labels"] for f in features], batch_first=True, padding_value=self.pad
        )
        return {
            "input_features": torch.stack([f["input_features"] for f in features]),
            "labels": labels,
        }


config = WhisperConfig(
    d_model=768,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    use_cache=False,
)
model = WhisperForConditionalGeneration(config)

training_args = Seq2SeqTrainingArguments(
    output_dir="/tmp/whisper-dialects",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-5,
    warmup_steps=2,
    max_steps=3,
    fp16=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)

trainer = Seq2SeqTrainer(
    model=model, args=training_args, train_dataset=Speech(), data_collator=Collator()
)
trainer.train()
