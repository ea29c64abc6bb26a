"""Fine-tune a DeBERTa-v3-small as a classifier of reviews with the Trainer (5 stars)."""

import os
import random
import tempfile

import numpy as np
import torch
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

os.environ["TOKENIZERS_PARALLELISM"] = "false"
set_seed(42)
MAX_LEN = 256


def make_reviews(n):
    # short and long reviews, token ids only (the tokenizer ran before)
    rows = []
    for _ in range(n):
        length = min(MAX_LEN, max(20, int(random.gauss(190, 70))))
        ids = [1] + [random.randint(10, 49_000) for _ in range(length - 2)] + [2]
        rows.append({"input_ids": ids, "labels": random.randint(0, 4)})
    return rows


class ReviewDataset(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, idx):
        return self.rows[idx]

    def __len__(self):
        return len(self.rows)


def data_collator(features):
    longest = max(len(f["input_ids"]) for f in features)
    longest = (longest + 7) // 8 * 8
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for f in features:
        pad = longest - len(f["input_ids"])
        batch["input_ids"].append(f["input_ids"] + [0] * pad)
        batch["attention_mask"].append([1] * len(f["input_ids"]) + [0] * pad)
        batch["labels"].append(f["labels"])
    return {k: torch.tensor(v) for k, v in batch.items()}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": float((predictions == labels).mean())}


config = DebertaV2Config(
    vocab_size=50_000,
    hidden_size=768,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=3072,
    relative_attention=True,
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    max_relative_positions=-1,
    position_biased_input=False,
    type_vocab_size=0,
    num_labels=5,
)
model = DebertaV2ForSequenceClassification(config)

training_args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    learning_rate=2e-5,
    weight_decay=0.01,
    lr_scheduler_type="cosine",
    warmup_steps=1,
    max_steps=5,
    eval_strategy="steps",
    eval_steps=5,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=ReviewDataset(make_reviews(200)),
    eval_dataset=ReviewDataset(make_reviews(32)),
    data_collator=data_collator,
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.state.log_history[-1])
