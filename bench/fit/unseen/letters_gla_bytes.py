"""Old letters byte by byte with gated linear attention: a recurrence in chunks of 128 with decays of each channel, short convolutions, SwiGLU, bf16 autocast, AdamW."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

cfg = SimpleNamespace(
    vocab=256, dim=512, heads=4, layers=5, chunk=128, length=2048, batch=6, steps=5, lr=6e-4
)


def chunked_gla(q, k, v, log_g, chunk):
    """q, k, log_g: B x H x L x K, v: B x H x L x V. A state of K x V is carried from chunk to chunk."""
    b, h, length, dk = q.shape
    n = length // chunk

    def split(t):
        return t.view(b, h, n, chunk, t.shape[-1]).float()

    q, k, v, log_g = split(q * dk**-0.5), split(k), split(v), split(log_g)
    cum = log_g.cumsum(3)
    total = cum[:, :, :, -1:]
    q_in = q * cum.exp()
    k_out = k * (total - cum).exp()
    k_in = k * (-cum).clamp(max=30).exp()
    mask = torch.ones(chunk, chunk, device=q.device, dtype=torch.bool).tril()
    within = (q_in @ k_in.transpose(-1, -2)).masked_fill(~mask, 0.0) @ v
    state = q.new_zeros(b, h, dk, v.shape[-1])
    across = []
    for i in range(n):
        across.append(q_in[:, :, i] @ state)
        decay = total[:, :, i].exp().transpose(-1, -2)
        state = decay * state + k_out[:, :, i].transpose(-1, -2) @ v[:, :, i]
    return (within + torch.stack(across, 2)).flatten(2, 3)


class GLA(nn.Module):
    def __init__(self):
        super().__init__()
        d, half = cfg.dim, cfg.dim // 2
        self.qk = nn.Linear(d, 2 * half, bias=False)
        self.v = nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(2 * half, 2 * half, 4, padding=3, groups=2 * half)
        self.gate = nn.Sequential(nn.Linear(d, 16, bias=False), nn.Linear(16, half))
        self.swish = nn.Linear(d, d, bias=False)
        self.norm = nn.RMSNorm(d // cfg.heads)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        qk = self.conv(self.qk(x).transpose(1, 2))[..., :n].transpose(1, 2)
        q, k = F.silu(qk).chunk(2, -1)
        log_g = F.logsigmoid(self.gate(x).float()) / 16

        def heads(t):
            return t.view(b, n, cfg.heads, -1).transpose(1, 2)

        y = chunked_gla(heads(q), heads(k), heads(self.v(x)), heads(log_g), cfg.chunk)
        y = self.norm(y.transpose(1, 2)).flatten(2)
        return self.o(y * F.silu(self.swish(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.mix = GLA()
        hidden = 1408
        self.up, self.down = nn.Linear(cfg.dim, 2 * hidden), nn.Linear(hidden, cfg.dim)

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class ByteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.Sequential(*(Block() for _ in range(cfg.layers)))
        self.norm = nn.RMSNorm(cfg.dim)

    def forward(self, ids, targets):
        h = self.norm(self.blocks(self.embed(ids)))
        logits = F.linear(h, self.embed.weight)  # tied
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


text = torch.randint(0, 256, (200_000,), dtype=torch.uint8)
model = ByteModel().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(cfg.steps):
    start = torch.randint(0, len(text) - cfg.length - 1, (cfg.batch,)).tolist()
    chunk = torch.stack([text[s : s + cfg.length + 1] for s in start]).long().cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(chunk[:, :-1], chunk[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(f"step {step} bits per byte {loss.item() / 0.6931:.3f}")
