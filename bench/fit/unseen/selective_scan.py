"""A selective state space model in plain PyTorch; the scan goes through the sequence in chunks."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def chunked_scan(decay, inp, chunk=32):
    """h[t] = decay[t] * h[t - 1] + inp[t], over (batch, length, channels, state)."""
    b, length, c, n = inp.shape
    h = inp.new_zeros(b, c, n)
    outs = []
    for a, x in zip(decay.split(chunk, 1), inp.split(chunk, 1)):
        log = a.clamp(min=1e-6).log().cumsum(1)
        local = (x * torch.exp(-log)).cumsum(1)
        y = torch.exp(log) * (local + h.unsqueeze(1))
        outs.append(y)
        h = y[:, -1]
    return torch.cat(outs, 1)


class SSMBlock(nn.Module):
    def __init__(self, d, expand=2, state=8, rank=16, kernel=4):
        super().__init__()
        inner = expand * d
        self.norm = nn.LayerNorm(d)
        self.in_proj = nn.Linear(d, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1)
        self.x_proj = nn.Linear(inner, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d, bias=False)
        self.rank, self.state = rank, state

    def forward(self, x):
        length = x.shape[1]
        u, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, bm, cm = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        dt = F.softplus(self.dt_proj(dt))
        decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.A_log))
        inp = (dt * u).unsqueeze(-1) * bm.unsqueeze(2)
        y = (chunked_scan(decay, inp) * cm.unsqueeze(2)).sum(-1) + self.D * u
        return x + self.out_proj(y * F.silu(gate))


class DNAModel(nn.Module):
    def __init__(self, d=192, depth=4, vocab=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([SSMBlock(d) for _ in range(depth)])
        self.norm_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm_f(x))


device = "cuda"
model = DNAModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, weight_decay=0.1)
for step in range(1, 5):
    seq = torch.randint(0, 16, (6, 1025), device=device)
    logits = model(seq[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 16), seq[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}")
