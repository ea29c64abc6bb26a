"""Sentences without labels by SimCSE on MPNet: each goes twice through dropout, cosines of all pairs, 320 in a batch under accelerate in bf16, rank correlation in between, state saved."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import MPNetConfig, MPNetModel, get_linear_schedule_with_warmup

set_seed(42)


class SimCSE(nn.Module):
    def __init__(self, config, temp=0.05):
        super().__init__()
        self.encoder = MPNetModel(config, add_pooling_layer=False)
        self.mlp = nn.Sequential(nn.Linear(config.hidden_size, config.hidden_size), nn.Tanh())
        self.temp = temp

    def embed(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        return hidden[:, 0]

    def forward(self, input_ids, attention_mask):
        both = self.embed(input_ids.repeat(2, 1), attention_mask.repeat(2, 1))
        z1, z2 = self.mlp(both).chunk(2)
        sim = nn.functional.cosine_similarity(z1[:, None], z2[None], dim=-1) / self.temp
        return nn.functional.cross_entropy(sim, torch.arange(len(z1), device=sim.device))


def sentences(n, length=32, vocab=30_527):
    for _ in range(n):
        size = int(torch.randint(6, length + 1, ()))
        ids = torch.ones(length, dtype=torch.long)
        ids[:size] = torch.randint(4, vocab, (size,))
        yield {"input_ids": ids, "attention_mask": (ids != 1).long()}


def spearman(a, b):
    ra, rb = a.argsort().argsort().float(), b.argsort().argsort().float()
    return torch.corrcoef(torch.stack([ra, rb]))[0, 1].item()


@torch.no_grad()
def evaluate(model, left, right, scores, accelerator):
    model.eval()
    similar = []
    for a, b in zip(left, right):
        za, zb = (accelerator.unwrap_model(model).embed(**x) for x in (a, b))
        similar.append(nn.functional.cosine_similarity(za.float(), zb.float()))
    model.train()
    return spearman(torch.cat(similar).cpu(), scores)


accelerator = Accelerator(mixed_precision="bf16")
config = MPNetConfig(
    hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048
)
model = SimCSE(config)
no_decay = ["bias", "LayerNorm.weight"]
optimizer = torch.optim.AdamW(
    [
        {
            "params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)],
            "weight_decay": 0.01,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
            "weight_decay": 0.0,
        },
    ],
    lr=3e-5,
)
train = DataLoader(list(sentences(320 * 8)), batch_size=320, shuffle=True)
left = DataLoader(list(sentences(400)), batch_size=200)
right = DataLoader(list(sentences(400)), batch_size=200)
gold = torch.rand(400)
lr_scheduler = get_linear_schedule_with_warmup(optimizer, 1, len(train))
model, optimizer, train, left, right, lr_scheduler = accelerator.prepare(
    model, optimizer, train, left, right, lr_scheduler
)

progress = tqdm(range(len(train)), disable=not accelerator.is_local_main_process)
for step, batch in enumerate(train, 1):
    loss = model(**batch)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    progress.update(1)
    progress.set_postfix(loss=f"{loss.item():.4f}")
    if step % 4 == 0:
        rho = evaluate(model, left, right, gold, accelerator)
        accelerator.print(f"step {step}: spearman {rho:.3f}")
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
