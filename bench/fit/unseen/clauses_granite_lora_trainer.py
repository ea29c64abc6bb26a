"""Clauses rewritten in plain words: Granite frozen in bf16, rank-stabilized LoRA by hand on every projection, Trainer with a collator that masks the clause, warm-up then constant."""

import math
import random
import tempfile

import torch
from torch import nn
from transformers import GraniteConfig, GraniteForCausalLM, Trainer, TrainingArguments


class RsLora(nn.Module):
    """y = W x + alpha / sqrt(r) * B A x; W stays as it is."""

    def __init__(self, linear, rank=32, alpha=16):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        kw = {"device": linear.weight.device, "dtype": torch.float32}
        self.a = nn.Parameter(torch.empty(rank, linear.in_features, **kw))
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, **kw))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.factor = alpha / math.sqrt(rank)

    def forward(self, x):
        low = nn.functional.linear(nn.functional.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))
        return self.linear(x) + self.factor * low


def adapt(model):
    model.requires_grad_(False)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, child in list(block.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(block, name, RsLora(child))
    return model


def pairs(n, seed=0):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        clause, plain = rng.randint(150, 300), rng.randint(60, 140)
        rows.append(
            {
                "clause": rng.choices(range(49152), k=clause),
                "plain": rng.choices(range(49152), k=plain),
            }
        )
    return rows


def collate(rows):
    width = max(len(r["clause"]) + len(r["plain"]) for r in rows)
    width += -width % 8
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for i, r in enumerate(rows):
        text = torch.tensor(r["clause"] + r["plain"])
        start = len(r["clause"])
        ids[i, : len(text)] = text
        mask[i, : len(text)] = 1
        labels[i, start : len(text)] = text[start:]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main():
    config = GraniteConfig(
        vocab_size=49155,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=7,
        num_attention_heads=24,
        num_key_value_heads=6,
        tie_word_embeddings=True,
        logits_scaling=8.0,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=1 / 128,
        use_cache=False,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = GraniteForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model = adapt(model)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=2e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            bf16=True,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
        )
        Trainer(model, args, train_dataset=pairs(60), data_collator=collate).train()


if __name__ == "__main__":
    main()
