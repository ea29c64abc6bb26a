"""Named entities with BertForTokenClassification and Hugging Face's Trainer: padded batches, evaluation each epoch."""

import random
import tempfile

from transformers import (
    BertConfig,
    BertForTokenClassification,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
LENGTH = 256


def sentences(n):
    rng = random.Random(n)
    rows = []
    for _ in range(n):
        k = rng.randint(40, LENGTH)
        ids = [rng.randint(1000, 28995) for _ in range(k)]
        tags = [rng.randrange(len(LABELS)) for _ in range(k)]
        pad = LENGTH - k
        rows.append(
            {
                "input_ids": ids + [0] * pad,
                "attention_mask": [1] * k + [0] * pad,
                "labels": tags + [-100] * pad,
            }
        )
    return rows


def compute_metrics(p):
    predictions, labels = p
    right = (predictions.argmax(-1) == labels) & (labels != -100)
    return {"accuracy": float(right.sum() / (labels != -100).sum())}


config = BertConfig(vocab_size=28996, num_hidden_layers=8, num_labels=len(LABELS))
model = BertForTokenClassification(config)
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        output_dir=out,
        eval_strategy="epoch",
        learning_rate=2e-5,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        num_train_epochs=1,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=sentences(192),
        eval_dataset=sentences(32),
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
    )
    trainer.train()
