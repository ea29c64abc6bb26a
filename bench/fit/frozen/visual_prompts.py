"""Prompt tokens before a frozen, checkpointed vision transformer, and a head above it, in bf16 autocast with a DataLoader."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 16, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Prompted(nn.Module):
    def __init__(self, width=1280, depth=18, prompts=20, classes=200):
        super().__init__()
        self.prompts = nn.Parameter(0.02 * torch.randn(1, prompts, width))
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)
        for part in (self.patches, self.layers):
            part.requires_grad_(False)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.prompts.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x[:, 0])


torch.manual_seed(0)
data = TensorDataset(torch.rand(64, 3, 224, 224), torch.randint(200, (64,)))
model = Prompted().to("cuda")
optimizer = torch.optim.AdamW([model.prompts, *model.head.parameters()], lr=1e-3)
for images, labels in DataLoader(data, 16):
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
