"""A vision transformer that multiplies out its attention."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


patches = nn.Conv2d(3, 256, 8, 8)
model = nn.Sequential(patches, nn.Flatten(2), *[nn.Identity()]).cuda()
layers = nn.Sequential(*[Layer(256, 8) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *layers.parameters()])
for _ in range(3):
    images = torch.randn(8, 3, 256, 256, device="cuda")
    loss = layers(model(images).transpose(1, 2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
