"""Blueprints described by a small PaliGemma: the whole model frozen in bf16, LoRA by own modules in the language model, prompt seen both ways, Trainer that saves adapters alone."""

import math
import os
import tempfile

import torch
from torch import nn
from transformers import (
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    SiglipVisionConfig,
    Trainer,
    TrainingArguments,
)

IMAGE, VOCAB, PATCHES = 19_990, 20_000, 256


class Adapter(nn.Module):
    def __init__(self, base, rank=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.dropout, self.scale = nn.Dropout(dropout), alpha / rank

    def forward(self, x):
        low = self.dropout(x).to(self.down.dtype) @ self.down.t()
        return self.base(x) + (self.scale * low @ self.up.t()).to(x.dtype)


def adapt(module):
    for name, child in module.named_children():
        if name in {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}:
            setattr(module, name, Adapter(child))
        else:
            adapt(child)


class Plans(torch.utils.data.Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        prompt = torch.randint(3, IMAGE, (24,), generator=g)
        answer = torch.randint(3, IMAGE, (72,), generator=g)
        image = torch.full((PATCHES,), IMAGE)
        ids = torch.cat([image, prompt, answer])
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.cat([torch.zeros(PATCHES + 24), torch.ones(72)]).long(),
            "labels": torch.cat([torch.full((PATCHES + 24,), -100), answer]),
            "pixel_values": torch.randn(3, 224, 224, generator=g).bfloat16(),
        }


class AdapterTrainer(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        small = {n: p.detach().cpu() for n, p in self.model.named_parameters() if p.requires_grad}
        os.makedirs(output_dir or self.args.output_dir, exist_ok=True)
        torch.save(small, os.path.join(output_dir or self.args.output_dir, "adapters.pt"))


config = PaliGemmaConfig(
    vision_config=SiglipVisionConfig(
        hidden_size=576,
        intermediate_size=2304,
        num_hidden_layers=8,
        num_attention_heads=8,
        image_size=224,
        patch_size=14,
        vision_use_head=False,
        projection_dim=1024,
    ).to_dict(),
    text_config=GemmaConfig(
        vocab_size=VOCAB,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=128,
        use_cache=False,
    ).to_dict(),
    image_token_index=IMAGE,
    projection_dim=1024,
    hidden_size=1024,
)
model = PaliGemmaForConditionalGeneration(config).bfloat16().requires_grad_(False)
adapt(model.model.language_model)
print(sum(p.numel() for p in model.parameters() if p.requires_grad), "weights in adapters")

with tempfile.TemporaryDirectory() as folder:
    trainer = AdapterTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=5,
            per_device_train_batch_size=10,
            learning_rate=2e-4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Plans(),
    )
    trainer.train()
    trainer.save_model(folder)
    print(os.listdir(folder))
