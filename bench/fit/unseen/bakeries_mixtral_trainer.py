"""Recipes of bakeries by a small Mixtral (eight experts, two per token, router loss) under Trainer: streamed batches, an optimizer handed in, bf16, norms without decay."""

import torch
from torch.utils.data import IterableDataset
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


class Stream(IterableDataset):
    def __init__(self, vocab, length):
        self.vocab, self.length = vocab, length

    def __iter__(self):
        g = torch.Generator().manual_seed(5)
        while True:
            text = torch.randint(3, self.vocab, (self.length,), generator=g)
            yield {"input_ids": text, "labels": text.clone()}


cfg = MixtralConfig(
    vocab_size=18_000,
    hidden_size=640,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=10,
    num_key_value_heads=2,
    num_local_experts=8,
    num_experts_per_tok=2,
    max_position_embeddings=1024,
    output_router_logits=True,
    router_aux_loss_coef=0.02,
    use_cache=False,
)
model = MixtralForCausalLM(cfg)

decayed = [p for p in model.parameters() if p.ndim >= 2]
others = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
    lr=3e-4,
    betas=(0.9, 0.95),
)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)

args = TrainingArguments(
    output_dir="bakeries",
    max_steps=5,
    per_device_train_batch_size=8,
    bf16=True,
    max_grad_norm=1.0,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    dataloader_num_workers=0,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Stream(cfg.vocab_size, 512),
    data_collator=default_data_collator,
    optimizers=(optimizer, scheduler),
)
result = trainer.train()
print(result.training_loss)
