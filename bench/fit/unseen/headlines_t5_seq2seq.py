"""Headlines from articles: T5 under Seq2SeqTrainer with Adafactor and labels padded by -100."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)


class Articles(Dataset):
    def __init__(self, n, source=512, target=64):
        gen = torch.Generator().manual_seed(n)
        self.source = torch.randint(3, 32000, (n, source), generator=gen)
        self.target = torch.randint(3, 32000, (n, target), generator=gen)

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        labels = self.target[i].clone()
        labels[40 + i % 20 :] = -100
        return {
            "input_ids": self.source[i],
            "attention_mask": torch.ones_like(self.source[i]),
            "labels": labels,
        }


config = T5Config(
    d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)
args = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    max_steps=5,
    optim="adafactor",
    learning_rate=1e-3,
    predict_with_generate=True,
    save_strategy="no",
    report_to=[],
)
Seq2SeqTrainer(model=model, args=args, train_dataset=Articles(128)).train()
