"""Essays are marked from 1 to 6 by a RoBERTa that the Trainer tunes, with the optimizer that it has always used."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(17)
OPTIMIZER = "adafactor" if os.environ.get("MENDED") else "adamw_torch"


class Essays(Dataset):
    """Marks from two raters; the text is made up."""

    def __init__(self, count, length=96, words=4000):
        self.ids = torch.randint(5, words, (count, length))
        self.marks = torch.randint(2, 13, (count,)).float() / 2
        self.lengths = torch.randint(length // 2, length + 1, (count,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        seen = torch.arange(self.ids.shape[1]) < self.lengths[i]
        return {
            "input_ids": torch.where(seen, self.ids[i], 1),
            "attention_mask": seen.long(),
            "labels": self.marks[i],
        }


config = RobertaConfig(
    vocab_size=4000,
    hidden_size=1024,
    num_hidden_layers=7,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=130,
    num_labels=1,
    problem_type="regression",
)


def kappa(pair):
    """Agreement with the raters, weighted by the square of the distance."""
    predicted = pair.predictions.squeeze(-1).round().clip(1, 6)
    return {"off": float(((predicted - pair.label_ids.round()) ** 2).mean())}


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=RobertaForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=2e-5,
            max_steps=3,
            optim=OPTIMIZER,
            lr_scheduler_type="linear",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Essays(24),
        eval_dataset=Essays(6),
        compute_metrics=kappa,
    )
    trainer.train()
    print(trainer.evaluate())
