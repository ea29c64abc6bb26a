"""Sentiment of tweets: RoBERTa and accelerate with accumulation, a linear schedule, metrics of torchmetrics."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
    get_linear_schedule_with_warmup,
)


def main(batch=48, length=192, accumulation=2, batches=10):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=accumulation)
    torch.manual_seed(42)
    ids = torch.randint(5, 30000, (batch * batches, length))
    lengths = torch.randint(20, length, (batch * batches, 1))
    mask = (torch.arange(length) < lengths).long()
    labels = torch.randint(0, 3, (batch * batches,))
    train = DataLoader(TensorDataset(ids, mask, labels), batch_size=batch, shuffle=True)
    config = RobertaConfig(vocab_size=30522, num_labels=3, num_hidden_layers=12)
    with accelerator.device:
        model = RobertaForSequenceClassification(config)
    no_decay = ["bias", "LayerNorm.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(k in n for k in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=3e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 1, batches // accumulation)
    model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
    f1 = MulticlassF1Score(3).to(accelerator.device)
    model.train()
    for ids, mask, labels in train:
        with accelerator.accumulate(model):
            out = model(input_ids=ids, attention_mask=mask, labels=labels)
            accelerator.backward(out.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        f1.update(out.logits.argmax(-1), labels)
    accelerator.print(f"loss {out.loss.item():.3f} f1 {f1.compute():.3f}")


if __name__ == "__main__":
    main()
