"""Masked words by BERT under accelerate, which also accumulates gradients."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

MASK, VOCAB = 4, 24000


def mlm_collate(examples):
    input_ids = torch.stack(examples)
    labels = input_ids.clone()
    chosen = torch.rand(labels.shape) < 0.15
    labels[~chosen] = -100
    input_ids[chosen & (torch.rand(labels.shape) < 0.8)] = MASK
    return dict(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels)


def training_function():
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    data = list(torch.randint(5, VOCAB, (200, 256)))
    loader = DataLoader(data, batch_size=20, collate_fn=mlm_collate, shuffle=True)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB, hidden_size=576, num_hidden_layers=9, num_attention_heads=9,
            intermediate_size=2304,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, 100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print("loss", loss.item())


if __name__ == "__main__":
    training_function()
