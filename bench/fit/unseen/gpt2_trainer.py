"""Hugging Face's Trainer on a small GPT-2, with accumulation and an own loss by a subclass."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Lines(Dataset):
    def __init__(self, n, length, vocab):
        g = torch.Generator().manual_seed(3)
        self.rows = torch.randint(5, vocab, (n, length), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]
        weight = 0.5 if i % 3 == 0 else 1.0
        return {"input_ids": ids, "labels": ids.clone(), "weight": torch.tensor(weight)}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        weight = inputs.pop("weight")
        outputs = model(**inputs)
        logits, labels = outputs.logits[:, :-1], inputs["labels"][:, 1:]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none"
        )
        loss = (loss.view(labels.shape).mean(1) * weight).mean()
        return (loss, outputs) if return_outputs else loss


def collate(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


def main():
    config = GPT2Config(vocab_size=20000, n_positions=384, n_embd=512, n_layer=8, n_head=8)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=12,
            gradient_accumulation_steps=2,
            max_steps=4,
            learning_rate=5e-4,
            warmup_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            bf16=True,
            disable_tqdm=True,
        )
        WeightedTrainer(
            model=model, args=args, train_dataset=Lines(120, 384, 20000), data_collator=collate
        ).train()


if __name__ == "__main__":
    main()
