"""Abstracts of theses: PEGASUS-X reads 4,096 tokens in blocks beside global tokens, Seq2SeqTrainer, bf16, two texts for a step."""

import tempfile

import torch
from transformers import (
    PegasusXConfig,
    PegasusXForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

SOURCE, TARGET = 4096, 256


class Theses(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(4, 50000, (SOURCE,), generator=g)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.randint(4, 50000, (TARGET,), generator=g),
        }


config = PegasusXConfig(
    vocab_size=50304,
    d_model=768,
    encoder_layers=4,
    decoder_layers=4,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    num_global_tokens=64,
    block_size=512,
    use_cache=False,
)
model = PegasusXForConditionalGeneration(config)

trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=4,
        learning_rate=3e-5,
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=Theses(),
)
trainer.train()
