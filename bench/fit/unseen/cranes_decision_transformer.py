"""Harbour cranes from records: a Decision Transformer over returns, camera frames and moves, offline, context of thirty, Adam with warm-up, evaluated by a rollout."""

import numpy as np
import torch
import torch.nn as nn

MOVES, CONTEXT = 18, 30


class Records:
    """Episodes in memory: frames as bytes, moves and rewards."""

    def __init__(self, episodes=12, steps=300, seed=0):
        rng = np.random.RandomState(seed)
        self.rng = rng
        self.frames = rng.randint(0, 256, (episodes, steps, 4, 84, 84), dtype=np.uint8)
        self.moves = rng.randint(0, MOVES, (episodes, steps))
        rewards = (rng.rand(episodes, steps) < 0.05).astype(np.float32)
        self.togo = rewards[:, ::-1].cumsum(1)[:, ::-1].copy()

    def sample(self, batch):
        e = self.rng.randint(0, len(self.frames), batch)
        t = self.rng.randint(0, self.frames.shape[1] - CONTEXT, batch)
        cut = lambda x: np.stack([x[i, j : j + CONTEXT] for i, j in zip(e, t)])
        frames = torch.from_numpy(cut(self.frames)).cuda(non_blocking=True).float().div_(255)
        moves = torch.from_numpy(cut(self.moves)).cuda()
        togo = torch.from_numpy(cut(self.togo)).cuda().unsqueeze(-1)
        return togo, frames, moves, torch.from_numpy(t).cuda()


class Attention(nn.Module):
    def __init__(self, d, heads, p):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.drop = heads, nn.Dropout(p)
        n = 3 * CONTEXT
        self.register_buffer("mask", torch.ones(n, n).tril().bool())

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = q @ k.transpose(-2, -1) / (D // self.heads) ** 0.5
        w = w.masked_fill(~self.mask[:T, :T], float("-inf")).softmax(-1)
        return self.out((self.drop(w) @ v).transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, d, heads, p=0.1):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(d), Attention(d, heads, p)
        self.ln2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(p))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, d=256, heads=8, depth=6, longest=1000):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, d),
            nn.Tanh(),
        )
        self.hope = nn.Sequential(nn.Linear(1, d), nn.Tanh())
        self.act = nn.Embedding(MOVES, d)
        self.place = nn.Parameter(torch.zeros(1, 3 * CONTEXT, d))
        self.clock = nn.Embedding(longest, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, MOVES, bias=False)

    def forward(self, togo, frames, moves, t):
        B, K = moves.shape
        seen = self.see(frames.flatten(0, 1)).view(B, K, -1)
        x = torch.stack([self.hope(togo), seen, self.act(moves)], 2).flatten(1, 2)
        x = x + self.place[:, : 3 * K] + self.clock(t)[:, None]
        return self.head(self.norm(self.blocks(x)))[:, 1::3]


def main(batch=96, updates=6, warmup=4):
    torch.manual_seed(123)
    records, net = Records(), DecisionTransformer().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=6e-4, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1, (i + 1) / warmup))
    for u in range(updates):
        togo, frames, moves, t = records.sample(batch)
        logits = net(togo, frames, moves, t)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), moves.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        print(u, loss.item())
    net.eval()
    with torch.no_grad():
        togo, frames, moves, t = records.sample(1)
        for k in range(1, 6):
            step = net(togo[:, :k], frames[:, :k], moves[:, :k], t)[:, -1]
            moves[:, k - 1] = torch.distributions.Categorical(logits=step).sample()
    print("moves", moves[0, :5].tolist())


main()
