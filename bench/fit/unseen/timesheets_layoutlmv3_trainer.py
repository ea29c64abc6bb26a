# Fields of scanned timesheets (name, hours, rate ...) with LayoutLMv3: words, boxes and the page.
# Trainer, fp32. Evaluates after every fourth step and counts fields that were found.
import os
import random
import shutil
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    LayoutLMv3Config,
    LayoutLMv3ForTokenClassification,
    Trainer,
    TrainingArguments,
)

STEPS = int(os.environ.get("JOB_STEPS", "5"))
FIELDS = ["O"] + [f"{p}-{f}" for f in ("NAME", "DATE", "HOURS", "RATE", "SUM") for p in "BI"]
TOKENS = 512


class Timesheets(Dataset):
    def __init__(self, n, seed=0):
        self.n = n
        self.seed = seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        rng = random.Random(self.seed + index)
        words = rng.randint(300, TOKENS - 2)
        ids, boxes, labels = [0], [[0, 0, 0, 0]], [-100]
        x, y = 40, 40
        for _ in range(words):
            w = rng.randint(20, 90)
            if x + w > 960:
                x, y = 40, y + 14
            ids.append(rng.randint(4, 50_000))
            boxes.append([x, min(y, 980), x + w, min(y + 12, 1000)])
            labels.append(rng.choice(range(1, len(FIELDS))) if rng.random() < 0.2 else 0)
            x += w + 8
        ids.append(2)
        boxes.append([0, 0, 0, 0])
        labels.append(-100)
        empty = TOKENS - len(ids)
        page = torch.ones(3, 224, 224)
        for left, top, right, bottom in boxes[1:-1]:
            a, b = int(top * 0.223), int(left * 0.223)
            page[:, a : a + 2, b : int(right * 0.223)] = 0.2
        return {
            "input_ids": torch.tensor(ids + [1] * empty),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * empty),
            "bbox": torch.tensor(boxes + [[0, 0, 0, 0]] * empty),
            "labels": torch.tensor(labels + [-100] * empty),
            "pixel_values": (page - 0.5) / 0.5,
        }


def found(prediction):
    logits, labels = prediction
    if isinstance(logits, tuple):
        logits = logits[0]
    guess = np.argmax(logits, -1)
    real = labels > 0
    return {"recall": float((guess[real] == labels[real]).mean()) if real.any() else 0.0}


config = LayoutLMv3Config(
    vocab_size=50_265,
    num_hidden_layers=12,
    hidden_size=768,
    intermediate_size=3072,
    max_position_embeddings=514,
    num_labels=len(FIELDS),
    id2label=dict(enumerate(FIELDS)),
    label2id={f: i for i, f in enumerate(FIELDS)},
)
torch.manual_seed(21)
model = LayoutLMv3ForTokenClassification(config)

scratch = tempfile.mkdtemp(prefix="timesheets-")
args = TrainingArguments(
    output_dir=scratch,
    max_steps=STEPS,
    per_device_train_batch_size=12,
    per_device_eval_batch_size=12,
    learning_rate=3e-5,
    lr_scheduler_type="cosine",
    warmup_steps=1,
    weight_decay=0.01,
    eval_strategy="steps",
    eval_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Timesheets(1000),
    eval_dataset=Timesheets(24, seed=10**6),
    compute_metrics=found,
)
result = trainer.train()
print("mean loss", result.training_loss)
shutil.rmtree(scratch)
