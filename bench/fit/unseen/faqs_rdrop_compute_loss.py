"""FAQ intent classification with R-Drop: a Trainer that passes every batch twice and pulls the two together."""

import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

LABELS = 77


class Questions(Dataset):
    """Questions of 40 to 192 tokens, padded by the collator to the longest of the batch."""

    def __init__(self, n, vocab, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            label = int(rng.integers(LABELS))
            ids = rng.integers(5, vocab, int(rng.integers(40, 192)))
            ids[:8] = 5 + label
            self.rows.append((ids, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": [0, *ids.tolist(), 2], "label": label}


class Collator:
    def __init__(self, pad, multiple=8):
        self.pad, self.multiple = pad, multiple

    def __call__(self, rows):
        longest = max(len(r["input_ids"]) for r in rows)
        longest = -(-longest // self.multiple) * self.multiple
        ids = torch.full((len(rows), longest), self.pad)
        mask = torch.zeros_like(ids)
        for i, r in enumerate(rows):
            n = len(r["input_ids"])
            ids[i, :n] = torch.tensor(r["input_ids"])
            mask[i, :n] = 1
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.tensor([r["label"] for r in rows]),
        }


class RDropTrainer(Trainer):
    def __init__(self, *args, alpha=4.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        first = model(**inputs)
        if not model.training:
            loss = F.cross_entropy(first.logits, labels)
            return (loss, first) if return_outputs else loss
        second = model(**inputs)
        ce = 0.5 * (F.cross_entropy(first.logits, labels) + F.cross_entropy(second.logits, labels))
        p, q = F.log_softmax(first.logits.float(), -1), F.log_softmax(second.logits.float(), -1)
        kl = 0.5 * (
            F.kl_div(p, q, log_target=True, reduction="batchmean")
            + F.kl_div(q, p, log_target=True, reduction="batchmean")
        )
        loss = ce + self.alpha * kl
        if self.state.global_step % 2 == 0:
            self.log({"ce": ce.item(), "kl": kl.item()})
        return (loss, first) if return_outputs else loss


class Freeze(TrainerCallback):
    """Thaws the embeddings after a few steps."""

    def __init__(self, module, steps):
        self.module, self.steps = module, steps
        for p in module.parameters():
            p.requires_grad_(False)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.steps:
            for p in self.module.parameters():
                p.requires_grad_(True)


def metrics(result):
    predictions = result.predictions.argmax(-1)
    return {"accuracy": float((predictions == result.label_ids).mean())}


def main():
    set_seed(11)
    config = RobertaConfig(
        vocab_size=30000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=258,
        num_labels=LABELS,
    )
    model = RobertaForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        gradient_accumulation_steps=2,
        max_steps=10,
        learning_rate=3e-5,
        warmup_steps=2,
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    trainer = RDropTrainer(
        model=model,
        args=args,
        train_dataset=Questions(1200, config.vocab_size, 0),
        eval_dataset=Questions(128, config.vocab_size, 1),
        data_collator=Collator(config.pad_token_id),
        compute_metrics=metrics,
        callbacks=[Freeze(model.roberta.embeddings, 5)],
        alpha=2.0,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
