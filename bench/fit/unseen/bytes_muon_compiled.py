"""A GPT over bytes with torch.compile on every block and Muon by hand for its matrices, AdamW for the rest."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def orthogonalize(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        y = x @ x.T
        x = a * x + (b * y + c * y @ y) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"].mul_(group["momentum"]).add_(p.grad)
                update = orthogonalize(p.grad.add(buf, alpha=group["momentum"]))
                scale = max(1, p.size(0) / p.size(1)) ** 0.5
                p.add_(update.to(p.dtype), alpha=-group["lr"] * scale)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.fc, self.out = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (c,))).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.relu(self.fc(F.rms_norm(x, (c,)))).square())


class ByteGPT(nn.Module):
    def __init__(self, dim=768, depth=10, heads=6, length=2048):
        super().__init__()
        self.embed, self.pos = nn.Embedding(256, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, 256, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(F.rms_norm(x, (x.size(-1),)))


def main(steps=8, batch=6, length=1024):
    torch.manual_seed(0)
    model = ByteGPT().cuda()
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    for block in model.blocks:
        block.compile()
    muon = Muon(matrices)
    adam = torch.optim.AdamW(
        [model.embed.weight, model.pos.weight, model.head.weight],
        lr=3e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    corpus = torch.randint(0, 256, (1_000_000,), dtype=torch.uint8)
    for step in range(steps):
        at = torch.randint(0, len(corpus) - length - 1, (batch,)).tolist()
        ids = torch.stack([corpus[i : i + length + 1] for i in at]).long().cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for opt in (muon, adam):
            opt.step()
            opt.zero_grad(set_to_none=True)
        print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
