"""Prices, brands and ratings on product pages: MarkupLM over text nodes and their XPaths, tags weighted by rarity through compute_loss_func of the Trainer, two micro-batches a step."""

import random

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    MarkupLMConfig,
    MarkupLMForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

TAGS = ["O", "B-price", "I-price", "B-brand", "I-brand", "B-rating", "I-rating"]
MAX_LEN, DEPTH, PAD_TAG, PAD_SUB = 512, 50, 216, 1001
# share of tokens with each tag in the last crawl
FREQ = torch.tensor([0.9, 0.02, 0.02, 0.015, 0.015, 0.015, 0.015])


class Pages(Dataset):
    """Pages as walks in a DOM tree: the path to a node shares a prefix with that to the one before."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(self.seed + i)
        ids, paths, subs, labels = [0], [[]], [[]], [-100]
        path, sub = [25, 10], [0, 0]
        goal = rng.randint(330, MAX_LEN)
        while len(ids) < goal:
            keep = rng.randint(2, max(2, len(path)))
            new = rng.randint(1, 6)
            path = (path[:keep] + [rng.randrange(215) for _ in range(new)])[:DEPTH]
            sub = (sub[:keep] + [rng.randrange(40) for _ in range(new)])[:DEPTH]
            kind = rng.choices([0, 1, 3, 5], [12, 1, 1, 1])[0]
            for j in range(rng.randint(1, 9)):
                ids.append(rng.randrange(4, 50265))
                paths.append(path)
                subs.append(sub)
                labels.append(kind + (1 if kind and j else 0))
        return {
            "ids": ids[:goal],
            "paths": paths[:goal],
            "subs": subs[:goal],
            "labels": labels[:goal],
        }


def collate(pages):
    b = len(pages)
    out = {
        "input_ids": torch.ones(b, MAX_LEN, dtype=torch.long),
        "attention_mask": torch.zeros(b, MAX_LEN, dtype=torch.long),
        "xpath_tags_seq": torch.full((b, MAX_LEN, DEPTH), PAD_TAG),
        "xpath_subs_seq": torch.full((b, MAX_LEN, DEPTH), PAD_SUB),
        "labels": torch.full((b, MAX_LEN), -100),
    }
    for i, page in enumerate(pages):
        n = len(page["ids"])
        out["input_ids"][i, :n] = torch.tensor(page["ids"])
        out["attention_mask"][i, :n] = 1
        out["labels"][i, :n] = torch.tensor(page["labels"])
        for name, key in (("xpath_tags_seq", "paths"), ("xpath_subs_seq", "subs")):
            for j, path in enumerate(page[key]):
                if path:
                    out[name][i, j, : len(path)] = torch.tensor(path)
    return out


def weighted_loss(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"].float().flatten(0, 1)
    weight = (1 / FREQ).sqrt().to(logits.device)
    total = F.cross_entropy(logits, labels.flatten(), weight, ignore_index=-100, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = (labels != -100).sum()
    return total / num_items_in_batch


def main():
    set_seed(7)
    config = MarkupLMConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        pad_token_id=1,
        num_labels=len(TAGS),
        id2label=dict(enumerate(TAGS)),
        label2id={t: i for i, t in enumerate(TAGS)},
    )
    model = MarkupLMForTokenClassification(config)
    args = TrainingArguments(
        output_dir="markuplm-swde",
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        max_steps=10,
        learning_rate=3e-5,
        weight_decay=0.01,
        warmup_steps=2,
        lr_scheduler_type="linear",
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Pages(12 * 2 * 10, seed=1000),
        data_collator=collate,
        compute_loss_func=weighted_loss,
    )
    print(trainer.train().metrics["train_loss"])


if __name__ == "__main__":
    main()
