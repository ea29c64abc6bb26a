"""An assistant learns from a reward: the policy, its reference, the reward and the critic all live on one card, in single precision."""

import os

import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"base": dict(d=768, depth=7, heads=12), "small": dict(d=384, depth=4, heads=6)}
SIZE = SIZES["small" if os.environ.get("MENDED") else "base"]
WORDS = 6000


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.a, self.b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.a(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.b(x))


class Decoder(nn.Module):
    """A decoder with a head: for words, or for one number."""

    def __init__(self, out, d, depth, heads):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, d), nn.Embedding(256, d)
        self.layers = nn.Sequential(*(Layer(d, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, out, bias=False)

    def forward(self, ids):
        x = self.word(ids) + self.place.weight[: ids.shape[1]]
        return self.head(self.norm(self.layers(x)))


def likelihood(model, ids):
    scores = model(ids)[:, :-1].log_softmax(-1)
    return scores.gather(-1, ids[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def answer(policy, ids, words=4):
    for _ in range(words):
        p = policy(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ids


torch.manual_seed(3)
with torch.device("cuda"):
    policy, reference = Decoder(WORDS, **SIZE), Decoder(WORDS, **SIZE)
    reward, critic = Decoder(1, **SIZE), Decoder(1, **SIZE)
reference.load_state_dict(policy.state_dict())
for frozen in (reference, reward):
    frozen.eval().requires_grad_(False)

descend = torch.optim.SGD([*policy.parameters(), *critic.parameters()], lr=1e-5)
for step in range(3):
    ids = answer(policy, torch.randint(WORDS, (1, 24), device="cuda"))
    with torch.no_grad():
        before = likelihood(policy, ids)
        drift = before - likelihood(reference, ids)
        gains = -0.1 * drift
        gains[:, -1] += reward(ids)[:, -1, 0]
        returns = gains.flip(1).cumsum(1).flip(1)
    values = critic(ids)[:, :-1, 0]
    advantage = (returns - values).detach()
    ratio = (likelihood(policy, ids) - before).exp()
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = loss + 0.5 * F.mse_loss(values, returns)
    descend.zero_grad(set_to_none=True)
    loss.backward()
    descend.step()
    print(f"{step}: loss {loss.item():.3f}, drift {drift.mean().item():.3f}")
