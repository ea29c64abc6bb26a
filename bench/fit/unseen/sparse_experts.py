"""A language model with sparse experts: top-2 routing, tokens gathered expert by expert."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1, self.w2 = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class MoE(nn.Module):
    def __init__(self, d, hidden, n_experts=8, k=2):
        super().__init__()
        self.k, self.n = k, n_experts
        self.gate = nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(d, hidden) for _ in range(n_experts))

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.gate(flat).softmax(-1)
        weight, chosen = probs.topk(self.k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == e)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
        load = F.one_hot(chosen[:, 0], self.n).float().mean(0)
        aux = self.n * (load * probs.mean(0)).sum()
        return out.view_as(x), aux


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.moe = MoE(d, 4 * d)

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False, is_causal=True)[0]
        y, aux = self.moe(self.ln2(x))
        return x + y, aux


class LM(nn.Module):
    def __init__(self, vocab=8000, d=384, depth=6, heads=6, length=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.full((t, t), float("-inf"), device=ids.device), 1)
        x = self.tok(ids) + self.pos.weight[:t]
        total = 0
        for layer in self.layers:
            x, aux = layer(x, mask)
            total = total + aux
        return self.head(x), total


lm = LM().cuda()
opt = torch.optim.Adam(lm.parameters(), lr=3e-4)
for it in range(4):
    ids = torch.randint(8000, (24, 257)).cuda()
    logits, aux = lm(ids[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]) + 0.01 * aux
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())
