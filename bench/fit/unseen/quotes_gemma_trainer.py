"""Gemma with its vocabulary of 256,000 words, from a config, with Trainer: bf16, Adafactor, accumulation."""

import tempfile

import torch
from transformers import GemmaConfig, GemmaForCausalLM, Trainer, TrainingArguments


def build_dataset(n, length):
    rows = []
    for _ in range(n):
        ids = torch.randint(10, 255_000, (length,))
        rows.append({"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)})
    return rows


def build_model():
    config = GemmaConfig(
        vocab_size=256_000,
        hidden_size=512,
        intermediate_size=4096,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=64,
    )
    model = GemmaForCausalLM(config)
    print(f"{model.num_parameters() / 1e6:.0f} M parameters")
    return model


args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=6,
    optim="adafactor",
    learning_rate=1e-4,
    bf16=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=build_model(), args=args, train_dataset=build_dataset(48, 512))
trainer.train()
