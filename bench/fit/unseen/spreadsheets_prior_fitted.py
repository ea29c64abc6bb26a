"""TabPFN-like in-context learner for tables: every training example is a whole synthetic data set drawn on the GPU from a
prior of random causal networks. Rows attend to the labelled rows only; the answer is a histogram over the target.
The transformer block is compiled."""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, ROWS, BUCKETS = 60, 1152, 512


def draw_tables(batch, device, hidden=128, depth=4):
    """Noisy random MLPs as structural models; features and target are some of the hidden nodes."""
    h = torch.randn(batch, ROWS, hidden, device=device)
    nodes = []
    for _ in range(depth):
        w = torch.randn(batch, hidden, hidden, device=device) / hidden**0.5
        w = w * (torch.rand_like(w) < 0.4) * 1.6
        pre = torch.bmm(h, w) + 0.5 * torch.randn(batch, 1, hidden, device=device)
        pick = torch.randint(3, (batch, 1, 1), device=device)
        h = torch.where(
            pick == 0, torch.tanh(pre), torch.where(pick == 1, F.leaky_relu(pre), torch.sin(pre))
        )
        h = h + 0.03 * torch.randn_like(h)
        nodes.append(h)
    nodes = torch.cat(nodes, 2)
    choice = torch.rand(batch, nodes.size(2), device=device).argsort(1)[:, : FEATURES + 1]
    table = nodes.gather(2, choice[:, None].expand(-1, ROWS, -1))
    table = (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)
    used = torch.randint(5, FEATURES + 1, (batch, 1, 1), device=device)
    x = table[..., :-1] * (torch.arange(FEATURES, device=device) < used)
    return x * (FEATURES / used), table[..., -1]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, labelled: int):
        b, n, d = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(h[:, :labelled]).view(b, labelled, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PriorFitted(nn.Module):
    def __init__(self, dim=512, depth=12, heads=8):
        super().__init__()
        self.x, self.y = nn.Linear(FEATURES, dim), nn.Linear(1, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, BUCKETS)
        )
        for block in self.blocks:
            nn.init.zeros_(block.o.weight)
            nn.init.zeros_(block.down.weight)
            block.compile(dynamic=False)

    def forward(self, x, y, labelled):
        h = self.x(x)
        h = torch.cat([h[:, :labelled] + self.y(y[:, :labelled, None]), h[:, labelled:]], 1)
        for block in self.blocks:
            h = block(h, labelled)
        return self.head(h[:, labelled:])


def histogram_nll(logits, y, borders):
    bucket = (torch.bucketize(y.contiguous(), borders) - 1).clamp(0, BUCKETS - 1)
    width = borders.diff()
    logp = logits.float().log_softmax(-1) - width.log()
    return -logp.gather(-1, bucket[..., None]).squeeze(-1)


def main(batch=16, accumulate=2, steps=3):
    torch.manual_seed(0)
    device = "cuda"
    torch.set_float32_matmul_precision("high")
    model = PriorFitted().to(device)
    borders = torch.special.ndtri(torch.linspace(1e-4, 1 - 1e-4, BUCKETS + 1, device=device))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(steps):
        total = 0.0
        for _ in range(accumulate):
            x, y = draw_tables(batch, device)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(x, y, labelled=896)
            loss = histogram_nll(logits, y[:, 896:], borders).mean() / accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        print(f"step {step} nll {total:.4f}")


if __name__ == "__main__":
    main()
