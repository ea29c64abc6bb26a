"""Who is asked to do what in office memos: ConvBERT tags tokens, Trainer in bf16 with evaluation and checkpoints on the way."""

import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    ConvBertConfig,
    ConvBertForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

MAX_STEPS = int(os.environ.get("JOB_STEPS", "5"))
TAGS = ["O", "B-WHO", "I-WHO", "B-TASK", "I-TASK", "B-WHEN", "I-WHEN"]
VOCAB, LENGTH, BATCH = 30522, 320, 32


class Memos(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(1000, VOCAB, (n, LENGTH))
        self.ids[:, 0], self.ids[:, -1] = 101, 102
        self.tags = np.zeros((n, LENGTH), dtype=np.int64)
        for row in range(n):
            for start in rng.choice(np.arange(5, LENGTH - 10, 12), 10, replace=False):
                kind = int(rng.integers(3))
                span = int(rng.integers(1, 6))
                self.tags[row, start] = 2 * kind + 1
                self.tags[row, start + 1 : start + span] = 2 * kind + 2
                # words of a kind come from a part of the vocabulary of their own
                self.ids[row, start : start + span] = 1000 + 500 * kind + rng.integers(0, 500, span)
        self.tags[:, 0] = self.tags[:, -1] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": torch.from_numpy(self.ids[i]),
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "labels": torch.from_numpy(self.tags[i]),
        }


def keep_argmax(logits, labels):
    return logits.argmax(-1)


def metrics(prediction):
    guess, truth = prediction.predictions, prediction.label_ids
    real = truth != -100
    tagged = real & (truth > 0)
    return {
        "accuracy": float((guess == truth)[real].mean()),
        "recall": float((guess == truth)[tagged].mean()) if tagged.any() else 0.0,
    }


if __name__ == "__main__":
    set_seed(3)
    config = ConvBertConfig(
        vocab_size=VOCAB,
        hidden_size=768,
        num_hidden_layers=8,
        num_attention_heads=12,
        intermediate_size=3072,
        num_labels=len(TAGS),
        id2label=dict(enumerate(TAGS)),
        label2id={t: i for i, t in enumerate(TAGS)},
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=ConvBertForTokenClassification(config),
            args=TrainingArguments(
                folder,
                max_steps=MAX_STEPS,
                per_device_train_batch_size=BATCH,
                per_device_eval_batch_size=BATCH,
                learning_rate=5e-5,
                weight_decay=0.01,
                warmup_steps=1,
                bf16=True,
                logging_steps=1,
                eval_strategy="steps",
                eval_steps=3,
                save_strategy="steps",
                save_steps=4,
                save_total_limit=1,
                save_only_model=True,
                report_to=[],
            ),
            train_dataset=Memos(BATCH * 8, 0),
            eval_dataset=Memos(BATCH * 2, 1),
            compute_metrics=metrics,
            preprocess_logits_for_metrics=keep_argmax,
        )
        print(trainer.train())
