"""Doctors' notes with Gemma 3 in Lightning: its 262,144 words and blocks frozen in bf16, LoRA on attention and MLP, bf16-true, two notes accumulated."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

TARGETS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear, self.scale = linear, alpha / rank
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x)) * self.scale


def inject(module, rank=8, alpha=16):
    for name, child in module.named_children():
        if name in TARGETS:
            setattr(module, name, LoRA(child, rank, alpha))
        else:
            inject(child, rank, alpha)


class Notes(Dataset):
    def __init__(self, n, length, vocab):
        self.ids = torch.randint(10, vocab, (n, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].clone()
        labels[: len(labels) // 4] = -100
        return {"input_ids": self.ids[i], "labels": labels}


class Tuner(pl.LightningModule):
    def __init__(self):
        super().__init__()
        config = Gemma3TextConfig(
            vocab_size=262144,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=128,
            sliding_window=512,
            use_cache=False,
            attn_implementation="eager",
        )
        self.lm = Gemma3ForCausalLM(config)
        self.lm.requires_grad_(False)
        inject(self.lm.model.layers)

    def training_step(self, batch, batch_idx):
        out = self.lm(input_ids=batch["input_ids"], labels=batch["labels"])
        self.log("loss", out.loss)
        return out.loss

    def on_before_optimizer_step(self, optimizer):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm())

    def configure_optimizers(self):
        adapters = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.Adam(adapters, lr=1e-4)


if __name__ == "__main__":
    pl.seed_everything(6, verbose=False)
    trainer = pl.Trainer(
        precision="bf16-true",
        max_steps=4,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tuner(), DataLoader(Notes(24, 896, 262144), batch_size=1, shuffle=True))
