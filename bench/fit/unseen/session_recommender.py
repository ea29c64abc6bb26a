"""SASRec on a catalogue of a million articles: dense embedding under Adam, sampled softmax with shared negatives."""

import dataclasses
import logging

import numpy as np
import torch
from torch import nn

log = logging.getLogger(__name__)


@dataclasses.dataclass
class HParams:
    items: int = 1_000_000
    dim: int = 128
    max_len: int = 64
    heads: int = 4
    layers: int = 3
    dropout: float = 0.2
    negatives: int = 1024
    batch: int = 384
    lr: float = 1e-3
    steps: int = 6


class Sessions(torch.utils.data.IterableDataset):
    """Sessions of 5 to 64 clicks with a long tail of articles; 0 pads on the left."""

    def __init__(self, hp: HParams, seed: int = 0):
        self.hp, self.rng = hp, np.random.default_rng(seed)

    def __iter__(self):
        hp = self.hp
        while True:
            n = int(self.rng.integers(5, hp.max_len + 2))
            clicks = (self.rng.pareto(1.1, n) * 100).astype(np.int64) % (hp.items - 1) + 1
            row = np.zeros(hp.max_len + 1, np.int64)
            row[-n:] = clicks
            yield row[:-1], row[1:]


class SASRec(nn.Module):
    def __init__(self, hp: HParams):
        super().__init__()
        self.hp = hp
        self.item_emb = nn.Embedding(hp.items, hp.dim, padding_idx=0)
        self.pos_emb = nn.Embedding(hp.max_len, hp.dim)
        self.drop = nn.Dropout(hp.dropout)
        layer = nn.TransformerEncoderLayer(
            hp.dim,
            hp.heads,
            4 * hp.dim,
            hp.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, hp.layers, nn.LayerNorm(hp.dim), enable_nested_tensor=False
        )
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(hp.max_len))

    def forward(self, seq):
        x = self.item_emb(seq) * self.hp.dim**0.5 + self.pos_emb.weight
        return self.encoder(self.drop(x), mask=self.causal)

    def sampled_softmax(self, hidden, targets, negatives):
        keep = targets > 0
        positive = (hidden * self.item_emb(targets)).sum(-1, keepdim=True)
        negative = hidden @ self.item_emb(negatives).T
        negative = negative.masked_fill(targets.unsqueeze(-1) == negatives, -1e9)
        logits = torch.cat([positive, negative], dim=-1)
        nll = -logits.log_softmax(-1)[..., 0]
        return (nll * keep).sum() / keep.sum()


def train(hp: HParams):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = SASRec(hp)
    loader = torch.utils.data.DataLoader(Sessions(hp), batch_size=hp.batch)
    optim = torch.optim.Adam(model.parameters(), lr=hp.lr, betas=(0.9, 0.98))
    for step, (seq, target) in zip(range(hp.steps), loader):
        seq, target = seq.cuda(), target.cuda()
        negatives = torch.randint(1, hp.items, (hp.negatives,), device="cuda")
        hidden = model(seq)
        loss = model.sampled_softmax(hidden, target, negatives)
        optim.zero_grad()
        loss.backward()
        optim.step()
        log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    train(HParams())
