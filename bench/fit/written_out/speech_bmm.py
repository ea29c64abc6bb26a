"""Speech features: an encoder whose attention folds heads into the batch (bmm of three dimensions, a padding mask)."""

import torch
from torch import nn


class MultiheadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.out_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, padding):
        t, b, c = x.shape
        q = self.q_proj(x) * self.d**-0.5
        k, v = self.k_proj(x), self.v_proj(x)
        q, k, v = (y.contiguous().view(t, b * self.h, self.d).transpose(0, 1) for y in (q, k, v))
        weights = torch.bmm(q, k.transpose(1, 2))
        assert list(weights.size()) == [b * self.h, t, t]
        weights = weights.view(b, self.h, t, t)
        weights = weights.masked_fill(padding[:, None, None, :].to(torch.bool), float("-inf"))
        weights = weights.view(b * self.h, t, t)
        probabilities = nn.functional.softmax(weights.float(), dim=-1).type_as(weights)
        attn = torch.bmm(probabilities, v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(t, b, c))


class Encoder(nn.Module):
    def __init__(self, dim=320, heads=4, depth=6):
        super().__init__()
        self.front = nn.Linear(80, dim)
        self.attn = nn.ModuleList([MultiheadAttention(dim, heads) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 64)

    def forward(self, x, padding):
        x = self.front(x)
        for attn, norm in zip(self.attn, self.norms):
            x = norm(x + attn(x, padding))
        return self.out(x).log_softmax(-1)


model = Encoder().to("cuda")
opt = torch.optim.Adam(model.parameters(), lr=2e-4)
ctc = nn.CTCLoss(zero_infinity=True)
for update in range(5):
    x = torch.randn(1300, 8, 80, device="cuda")
    lengths = torch.randint(900, 1300, (8,))
    padding = torch.arange(1300)[None] >= lengths[:, None]
    target = torch.randint(1, 64, (8, 60))
    loss = ctc(model(x, padding.cuda()), target.cuda(), lengths, torch.full((8,), 60))
    opt.zero_grad()
    loss.backward()
    opt.step()
