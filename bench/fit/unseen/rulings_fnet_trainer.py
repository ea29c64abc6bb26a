"""Court rulings by FNet (Fourier transforms for attention): masked words and order of sentences under Trainer, an own collator, fp32, fused AdamW, memory emptied each step."""

import torch
from transformers import FNetConfig, FNetForPreTraining, Trainer, TrainingArguments

VOCAB, MASK, LENGTH = 20_000, 6, 512
pieces = [torch.randint(10, VOCAB, (LENGTH // 2,)) for _ in range(300)]


class Rulings(torch.utils.data.Dataset):
    def __len__(self):
        return len(pieces) - 1

    def __getitem__(self, i):
        return {"first": pieces[i], "second": pieces[i + 1]}


def collate(rows):
    swap = torch.rand(len(rows)) < 0.5
    ids = torch.stack(
        [
            torch.cat((r["second"], r["first"]) if s else (r["first"], r["second"]))
            for r, s in zip(rows, swap)
        ]
    )
    kinds = torch.cat([torch.zeros(LENGTH // 2), torch.ones(LENGTH // 2)]).long()
    labels = ids.clone()
    picked = torch.rand(ids.shape) < 0.15
    labels[~picked] = -100
    ids[picked & (torch.rand(ids.shape) < 0.8)] = MASK
    return {
        "input_ids": ids,
        "token_type_ids": kinds.expand_as(ids).contiguous(),
        "labels": labels,
        "next_sentence_label": swap.long(),
    }


trainer = Trainer(
    model=FNetForPreTraining(
        FNetConfig(vocab_size=VOCAB, hidden_size=640, num_hidden_layers=10, intermediate_size=2560)
    ),
    args=TrainingArguments(
        output_dir="rulings",
        max_steps=5,
        per_device_train_batch_size=14,
        learning_rate=2e-4,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=10,
        optim="adamw_torch_fused",
        torch_empty_cache_steps=1,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
    ),
    train_dataset=Rulings(),
    data_collator=collate,
)
trainer.train()
