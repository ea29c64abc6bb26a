"""Find recipes from what is in the fridge: late interaction (ColBERT), three hard negatives per query, bf16.

Every token of a query looks for its best token of a document; the sums of these maxima are compared
over the own four candidates and over all other queries' first documents.
"""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
VOCAB, MARK_Q, MARK_D, MASK, PAD = 24_000, 1, 2, 3, 0


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        a = self.proj(a.transpose(1, 2).reshape(b, t, c))
        x = self.norm1(x + F.dropout(a, self.dropout, self.training))
        h = self.down(F.gelu(self.up(x)))
        return self.norm2(x + F.dropout(h, self.dropout, self.training))


class Encoder(nn.Module):
    def __init__(self, dim: int = 768, depth: int = 12, heads: int = 12, out: int = 128):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.places = nn.Embedding(256, dim)
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, out, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        real = ids != PAD
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = F.dropout(self.norm(x), 0.1, self.training)
        for layer in self.layers:
            x = layer(x, real[:, None, None, :])
        return F.normalize(self.head(x).float(), dim=-1), real


def maxsim(q: Tensor, d: Tensor, real: Tensor) -> Tensor:
    """All queries (b, m, c) against all documents (n, k, c): (b, n)."""
    scores = torch.einsum("bmc,nkc->bnmk", q, d)
    scores = scores.masked_fill(~real[None, :, None, :], -1e4)
    return scores.amax(-1).sum(-1)


def draw(queries: int, candidates: int, q_len: int, d_len: int) -> tuple[Tensor, Tensor]:
    q = torch.randint(10, VOCAB, (queries, q_len))
    q[:, 0] = MARK_Q
    q[torch.arange(q_len)[None] > torch.randint(4, q_len, (queries, 1))] = MASK  # augmentation
    d = torch.randint(10, VOCAB, (queries, candidates, d_len))
    d[:, 0, 1:5] = q[:, 1:5]
    d[:, :, 0] = MARK_D
    length = torch.randint(d_len // 2, d_len + 1, (queries, candidates, 1))
    d[torch.arange(d_len) >= length] = PAD
    return q, d


def main() -> None:
    torch.manual_seed(17)
    queries, candidates, q_len, d_len = 64, 4, 32, 180
    model = Encoder().cuda()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-5, total_steps=max(STEPS, 4) + 1)
    own = torch.zeros(queries, dtype=torch.long, device="cuda")
    across = torch.arange(queries, device="cuda")

    for step in range(STEPS):
        q_ids, d_ids = (x.cuda(non_blocking=True) for x in draw(queries, candidates, q_len, d_len))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            q, _ = model(q_ids)
            d, real = model(d_ids.flatten(0, 1))
        real = real.view(queries, candidates, d_len)
        d = d.view(queries, candidates, d_len, -1)
        near = torch.einsum("bmc,bnkc->bnmk", q, d).masked_fill(~real[:, :, None], -1e4)
        hard = F.cross_entropy(near.amax(-1).sum(-1), own)
        batch = F.cross_entropy(maxsim(q, d[:, 0], real[:, 0]), across)
        loss = hard + batch
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        ema.update_parameters(model)
        print(f"step {step}: loss {loss.item():.4f} (hard {hard.item():.4f})")

    with tempfile.TemporaryDirectory() as folder:
        torch.save(ema.module.state_dict(), os.path.join(folder, "encoder.pt"))


if __name__ == "__main__":
    main()
