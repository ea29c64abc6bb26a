"""Complaints with several topics at once: DistilBERT for multi-label classification, Trainer in fp16, dynamic padding, evaluation by a metric function."""

import tempfile

import numpy as np
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

NUM_TOPICS = 24
rng = np.random.default_rng(7)
torch.manual_seed(7)


def make_split(size):
    examples = []
    for _ in range(size):
        n = int(rng.integers(120, 513))
        ids = rng.integers(1000, 30522, n)
        ids[0], ids[-1] = 101, 102
        topics = (rng.random(NUM_TOPICS) < 0.12).astype(np.float32)
        examples.append({"input_ids": ids.tolist(), "labels": topics})
    return examples


def pad(examples):
    width = max(len(e["input_ids"]) for e in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, e in enumerate(examples):
        ids[row, : len(e["input_ids"])] = torch.tensor(e["input_ids"])
        mask[row, : len(e["input_ids"])] = 1
    labels = torch.from_numpy(np.stack([e["labels"] for e in examples]))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def compute_metrics(prediction):
    logits, labels = prediction
    guess = logits > 0
    hits = np.logical_and(guess, labels == 1).sum()
    precision = hits / max(guess.sum(), 1)
    recall = hits / max((labels == 1).sum(), 1)
    return {"micro_f1": 2 * precision * recall / max(precision + recall, 1e-9)}


model = DistilBertForSequenceClassification(
    DistilBertConfig(num_labels=NUM_TOPICS, problem_type="multi_label_classification")
)

args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    max_steps=6,
    eval_strategy="steps",
    eval_steps=3,
    fp16=True,
    learning_rate=5e-5,
    weight_decay=0.01,
    warmup_steps=2,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=make_split(256),
    eval_dataset=make_split(96),
    data_collator=pad,
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
