"""Cells under a microscope with a ChannelViT: every stain is cut into tokens of its own, whole stains dropped in training, register tokens, stochastic depth, fp32 with TF32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(dim // heads)
        self.k_norm = nn.LayerNorm(dim // heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.n1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.n2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.g1 = nn.Parameter(1e-4 * torch.ones(dim))
        self.g2 = nn.Parameter(1e-4 * torch.ones(dim))
        self.drop = drop

    def depth(self, branch):
        if not self.training or self.drop == 0:
            return branch
        keep = torch.rand(len(branch), 1, 1, device=branch.device) >= self.drop
        return branch * keep / (1 - self.drop)

    def forward(self, x):
        x = x + self.depth(self.g1 * self.attn(self.n1(x)))
        return x + self.depth(self.g2 * self.mlp(self.n2(x)))


class ChannelViT(nn.Module):
    def __init__(self, stains=8, size=128, patch=16, dim=384, layers=6, classes=161, registers=4):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, patch, patch)
        grid = (size // patch) ** 2
        self.where = nn.Parameter(torch.randn(1, 1, grid, dim) * 0.02)
        self.stain = nn.Parameter(torch.randn(1, stains, 1, dim) * 0.02)
        self.extra = nn.Parameter(torch.randn(1, 1 + registers, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, 6, 0.1 * i / layers) for i in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, cells, keep):
        """cells: B x stains x H x W; keep: the indices of the stains that are used."""
        cells = cells[:, keep]
        b, s = cells.shape[:2]
        x = self.patch(cells.flatten(0, 1)[:, None]).flatten(2).transpose(1, 2).unflatten(0, (b, s))
        x = (x + self.where + self.stain[:, keep]).flatten(1, 2)
        x = torch.cat([self.extra.expand(b, -1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def main():
    model = ChannelViT().cuda()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.04}, {"params": plain, "weight_decay": 0}], lr=5e-4
    )
    stains_used = [8, 5, 7, 8, 6]  # drawn between 1 and 8 in the paper
    for step, n in enumerate(stains_used):
        keep = torch.randperm(8, device="cuda")[:n]
        cells = torch.rand(40, 8, 128, 128, device="cuda")
        gene = torch.randint(0, 161, (40,), device="cuda")
        loss = F.cross_entropy(model(cells, keep), gene)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, n, "stains, loss", loss.item())


main()
