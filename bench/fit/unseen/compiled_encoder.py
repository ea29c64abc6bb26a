"""Sentence embeddings: an encoder whose blocks are compiled one by one, bf16, in-batch negatives."""

import torch, torch.nn as nn, torch.nn.functional as F

torch.set_float32_matmul_precision("high")
V, D, L, H, T, B = 30_528, 768, 12, 12, 128, 192
dev = "cuda"


class Attention(nn.Module):
    def __init__(s):
        super().__init__()
        s.qkv, s.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)

    def forward(s, x):
        b, t, _ = x.shape
        q, k, v = s.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return s.o(y.transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2, s.att = nn.RMSNorm(D), nn.RMSNorm(D), Attention()
        s.up, s.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(2 * D, D, bias=False)

    def forward(s, x):
        x = x + s.att(s.n1(x))
        a, b = s.up(s.n2(x)).chunk(2, -1)
        return x + s.down(F.gelu(a) * b)


class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok, s.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        s.blocks = nn.ModuleList([Block() for _ in range(L)])
        s.norm = nn.RMSNorm(D)

    def forward(s, ids):
        x = s.tok(ids) + s.pos.weight
        for b in s.blocks:
            x = b(x)
        return F.normalize(s.norm(x).mean(1), dim=-1)


net = Encoder().to(dev)
for b in net.blocks:
    b.compile(dynamic=False)
temp = nn.Parameter(torch.tensor(20.0, device=dev))
opt = torch.optim.AdamW([*net.parameters(), temp], lr=2e-5, fused=True)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 3)

for step in range(5):
    q, d = torch.randint(0, V, (2, B, T), device=dev)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        eq, ed = net(q), net(d)
        scores = temp * eq @ ed.T
        y = torch.arange(B, device=dev)
        loss = (F.cross_entropy(scores, y) + F.cross_entropy(scores.T, y)) / 2
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    sched.step()
    print(step, f"{loss.item():.3f}")
