"""A language model of riddles with product-key memories in place of two feed-forward layers; Lightning, bf16."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, WIDTH, LENGTH = 16000, 768, 512


class ProductKeyMemory(nn.Module):
    """keys x keys values, found by two searches over `keys` half keys (Lample and others, 2019)."""

    def __init__(self, width, heads=4, keys=384, half=128, k=32):
        super().__init__()
        self.heads, self.keys, self.half, self.k = heads, keys, half, k
        self.query = nn.Linear(width, heads * 2 * half)
        self.norm = nn.BatchNorm1d(2 * half)
        self.subkeys = nn.Parameter(torch.empty(heads, 2, keys, half).uniform_(-0.09, 0.09))
        self.values = nn.EmbeddingBag(keys * keys, width, mode="sum")
        nn.init.normal_(self.values.weight, std=width**-0.5)

    def forward(self, x):
        batch, length, width = x.shape
        query = self.norm(self.query(x).view(-1, 2 * self.half))
        query = query.view(-1, self.heads, 2, self.half)
        scores = torch.einsum("nhsd,hskd->nhsk", query, self.subkeys)
        best, where = scores.topk(self.k, dim=-1)
        pairs = (best[:, :, 0, :, None] + best[:, :, 1, None, :]).flatten(2)
        indices = (where[:, :, 0, :, None] * self.keys + where[:, :, 1, None, :]).flatten(2)
        top, place = pairs.topk(self.k, dim=-1)
        chosen = indices.gather(-1, place).flatten(1)
        weights = top.float().softmax(-1).flatten(1)
        return self.values(chosen, per_sample_weights=weights).view(batch, length, width)


class Block(nn.Module):
    def __init__(self, width, heads, memory):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if memory:
            self.feed = ProductKeyMemory(width)
        else:
            self.feed = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.between(x))


class Riddles(L.LightningModule):
    def __init__(self, depth=6, memories=(2, 4)):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 12, i in memories) for i in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def training_step(self, batch, index):
        (ids,) = batch
        logits = self(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        if (index + 1) % self.trainer.accumulate_grad_batches == 0:
            print(f"step {self.global_step} loss {outputs['loss'].item():.4f}")

    def configure_optimizers(self):
        values = [p for name, p in self.named_parameters() if "values" in name]
        others = [p for name, p in self.named_parameters() if "values" not in name]
        return torch.optim.Adam([{"params": others}, {"params": values, "lr": 1e-3}], lr=2.5e-4)


if __name__ == "__main__":
    L.seed_everything(31)
    texts = torch.randint(VOCAB, (12 * 2 * 5, LENGTH + 1))
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=5,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with trainer.init_module():
        model = Riddles()
    trainer.fit(model, DataLoader(TensorDataset(texts), batch_size=12, shuffle=True))
