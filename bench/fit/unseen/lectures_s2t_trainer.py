"""Lectures written down by Speech2Text (fbank features of uneven length) with Seq2SeqTrainer: fp16, label smoothing, inverse square root."""

import random
import tempfile

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
)

random.seed(0)
torch.manual_seed(0)


def lecture():
    frames, words = random.randint(700, 1400), random.randint(40, 110)
    return {"features": torch.randn(frames, 80), "text": torch.randint(3, 10_000, (words,))}


def collate(lectures):
    frames = max(len(l["features"]) for l in lectures)
    words = max(len(l["text"]) for l in lectures)
    x = torch.zeros(len(lectures), frames, 80)
    mask = torch.zeros(len(lectures), frames, dtype=torch.long)
    y = torch.full((len(lectures), words), -100)
    for row, l in enumerate(lectures):
        x[row, : len(l["features"])] = l["features"]
        mask[row, : len(l["features"])] = 1
        y[row, : len(l["text"])] = l["text"]
    before = torch.cat([torch.full((len(lectures), 1), 2), y[:, :-1].clamp_min(1)], 1)
    return {
        "input_features": x,
        "attention_mask": mask,
        "decoder_input_ids": before,
        "labels": y,
    }


model = Speech2TextForConditionalGeneration(
    Speech2TextConfig(
        vocab_size=10_000,
        d_model=384,
        encoder_layers=8,
        decoder_layers=4,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        max_source_positions=1500,
        max_target_positions=256,
    )
)
arguments = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=26,
    max_steps=5,
    fp16=True,
    learning_rate=2e-3,
    lr_scheduler_type="inverse_sqrt",
    warmup_steps=3,
    label_smoothing_factor=0.1,
    logging_strategy="no",
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    disable_tqdm=True,
)
Seq2SeqTrainer(
    model=model,
    args=arguments,
    data_collator=collate,
    train_dataset=[lecture() for _ in range(130)],
).train()
