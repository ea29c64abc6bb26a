"""Comments of any length ranked by likely votes: a transformer over jagged nested tensors, no padding anywhere, scaled dot products on ragged batches, Huber loss, AdamW, bf16 weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
DIM, HEADS, LAYERS, VOCAB = 640, 10, 8, 20_000


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (
            f(y).unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        seen = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(seen.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.votes = nn.Linear(DIM, 1)

    def forward(self, comments):
        x = self.words(comments)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        lengths = x.offsets().diff()
        owner = torch.repeat_interleave(lengths)
        means = x.values().new_zeros(len(lengths), DIM).index_add(0, owner, x.values())
        return self.votes(means / lengths[:, None]).squeeze(1)


def jagged(n):
    lengths = torch.randint(20, 500, (n,)).tolist()
    rows = [torch.randint(0, VOCAB, (k,)) for k in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")


model = Ranker().to("cuda", torch.bfloat16)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(5):
    comments = jagged(56)
    votes = torch.randn(56, device="cuda", dtype=torch.bfloat16).exp()
    loss = F.huber_loss(model(comments), votes.log1p())
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(step, comments.values().numel(), "words", round(loss.item(), 3))
