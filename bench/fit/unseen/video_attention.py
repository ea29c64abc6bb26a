"""A video transformer with attention divided between space and time; clips from a generator."""

import torch
from torch import nn


class DividedBlock(nn.Module):
    def __init__(self, dim, heads, drop=0.1):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(3)])
        self.time = nn.MultiheadAttention(dim, heads, drop, batch_first=True)
        self.space = nn.MultiheadAttention(dim, heads, drop, batch_first=True)
        self.ff = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        b, t, s, d = x.shape
        y = self.norms[0](x).transpose(1, 2).reshape(b * s, t, d)
        y, _ = self.time(y, y, y)
        x = x + y.view(b, s, t, d).transpose(1, 2)
        z = self.norms[1](x).reshape(b * t, s, d)
        z, _ = self.space(z, z, z)
        x = x + z.view(b, t, s, d)
        return x + self.ff(self.norms[2](x))


class VideoTransformer(nn.Module):
    def __init__(self, frames=8, size=112, patch=16, dim=384, depth=6, heads=6, classes=101):
        super().__init__()
        self.tubes = nn.Conv3d(3, dim, (1, patch, patch), (1, patch, patch))
        s = (size // patch) ** 2
        self.pos_t = nn.Parameter(torch.zeros(1, frames, 1, dim))
        self.pos_s = nn.Parameter(torch.zeros(1, 1, s, dim))
        self.blocks = nn.ModuleList([DividedBlock(dim, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, clip):
        x = self.tubes(clip).flatten(3).permute(0, 2, 3, 1)
        x = x + self.pos_t + self.pos_s
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def clips(n):
    for _ in range(n):
        yield torch.rand(8, 3, 8, 112, 112, device="cuda"), torch.randint(101, (8,), device="cuda")


model = VideoTransformer().to("cuda")
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)
accuracy = 0
for clip, label in clips(5):
    scores = model(clip)
    loss = nn.functional.cross_entropy(scores, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy += (scores.argmax(1) == label).sum()
print("right:", accuracy.item())
