"""Tiles of pathology slides: a vision transformer whose attention is einsum with a learned relative position bias."""

import torch
from torch import einsum, nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        return torch.randn(3, 224, 224), i % 9


class Attention(nn.Module):
    def __init__(self, dim, heads, tokens):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)
        self.rel = nn.Parameter(torch.zeros(heads, 2 * tokens - 1))
        where = torch.arange(tokens)[:, None] - torch.arange(tokens)[None] + tokens - 1
        self.register_buffer("where", where)
        self.attend = nn.Softmax(dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (
            t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3) for t in self.to_qkv(x).chunk(3, -1)
        )
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        dots = dots + self.rel[:, self.where].unsqueeze(0)
        attn = self.attend(dots)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads, tokens):
        super().__init__()
        self.a, self.b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, tokens)
        self.ff = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = self.attn(self.a(x)) + x
        return self.ff(self.b(x)) + x


class ViT(nn.Module):
    def __init__(self, dim=256, heads=8, depth=5, patch=8):
        super().__init__()
        tokens = (224 // patch) ** 2
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.layers = nn.Sequential(*(Layer(dim, heads, tokens) for _ in range(depth)))
        self.head = nn.Linear(dim, 9)

    def forward(self, x):
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


net = ViT().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for pictures, labels in DataLoader(Tiles(), batch_size=16):
    opt.zero_grad()
    criterion(net(pictures.cuda()), labels.cuda()).backward()
    opt.step()
