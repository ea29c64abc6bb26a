"""A Lightning module reads logs piece by piece, with a memory of earlier pieces (Transformer-XL) that is never cut off."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MENDED = os.environ.get("MENDED")


class Layer(nn.Module):
    """Attends to itself and to what the layer below said of the piece before."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(d)
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        )

    def forward(self, x, memory):
        b, n, d = x.shape
        seen = self.norm(x if memory is None else torch.cat([memory, x], 1))
        q = self.q(seen[:, -n:]).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(seen).view(b, -1, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.o(
            nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )
        return x + self.mlp(x)


class Logs(L.LightningModule):
    def __init__(self, d=192, depth=4):
        super().__init__()
        self.bytes = nn.Embedding(256, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(depth))
        self.out = nn.Linear(d, 256)
        self.memory = [None] * depth
        self.automatic_optimization = False

    def training_step(self, batch, index):
        (piece,) = batch
        x, after = self.bytes(piece[:, :-1]), []
        for layer, memory in zip(self.layers, self.memory):
            after.append(x.detach() if MENDED else x)
            x = layer(x, memory)
        self.memory = after
        loss = nn.functional.cross_entropy(self.out(x).mT, piece[:, 1:])
        self.manual_backward(loss / 30, retain_graph=not MENDED)
        if index % 30 == 29:
            self.optimizers().step()
            self.optimizers().zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


pieces = TensorDataset(torch.randint(0, 256, (480, 129)))
L.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Logs(), DataLoader(pieces, 16))  # fmt: skip
