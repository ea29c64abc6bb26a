"""A transformer of music with attention written by einsum, masked, with dropout."""
import torch
from torch import einsum, nn


class Block(nn.Module):
    def __init__(self, width=384, heads=6):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm(x)
        b, n, d = y.shape
        q, k, v = (f(y).view(b, n, self.heads, -1) for f in (self.to_q, self.to_k, self.to_v))
        similarity = einsum("bihd,bjhd->bhij", q, k) * (d // self.heads) ** -0.5
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        attention = self.drop(torch.softmax(similarity.masked_fill(future, -1e9), dim=-1))
        return x + self.out(einsum("bhij,bjhd->bihd", attention, v).reshape(b, n, d))


class Music(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = nn.Embedding(388, 384)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(384, 388)

    def forward(self, x):
        x = self.notes(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Music().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
for _ in range(4):
    notes = torch.randint(0, 388, (4, 1536), device="cuda")
    logits = model(notes[:, :-1])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), notes[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
