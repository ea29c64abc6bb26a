"""Chronicles by a language model whose experts choose their tokens: weights of the experts stacked, bmm, every other layer dense, AdamW for 200 M weights."""

import torch
from torch import nn
from torch.nn import functional as F

cfg = dict(
    vocab=20_000, dim=768, layers=10, heads=12, experts=8, hidden=1536, capacity=2.0, length=512
)


class ExpertChoice(nn.Module):
    def __init__(self, dim, hidden, experts, capacity):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, dim, hidden, device="cuda") * dim**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, dim, device="cuda") * hidden**-0.5)
        self.capacity = capacity

    def forward(self, x):
        flat = x.flatten(0, 1)
        n, e = flat.shape[0], self.up.shape[0]
        k = int(n * self.capacity / e)
        scores = self.router(flat).float().softmax(-1)
        gate, chosen = scores.t().topk(k, dim=-1)
        tokens = flat[chosen]
        y = torch.bmm(F.gelu(torch.bmm(tokens, self.up)), self.down)
        y = y * gate.unsqueeze(-1).to(y.dtype)
        out = torch.zeros_like(flat, dtype=y.dtype)
        out.index_add_(0, chosen.flatten(), y.flatten(0, 1))
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, i):
        super().__init__()
        d = cfg["dim"]
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        if i % 2:
            self.mlp = ExpertChoice(d, cfg["hidden"], cfg["experts"], cfg["capacity"])
        else:
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, cfg["heads"], -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class Chronicler(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(cfg["vocab"], cfg["dim"])
        self.pos = nn.Parameter(torch.zeros(cfg["length"], cfg["dim"]))
        self.layers = nn.ModuleList([Layer(i) for i in range(cfg["layers"])])
        self.ln = nn.LayerNorm(cfg["dim"])
        self.head = nn.Linear(cfg["dim"], cfg["vocab"], bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.ln(x))


with torch.device("cuda"):
    model = Chronicler()
print(sum(p.numel() for p in model.parameters()) // 10**6, "million weights")
optimizer = torch.optim.AdamW(
    model.parameters(), 2.5e-4, (0.9, 0.95), weight_decay=0.1, foreach=True
)
for step in range(5):
    ids = torch.randint(cfg["vocab"], (4, cfg["length"] + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print("step", step, "loss", loss.item())
