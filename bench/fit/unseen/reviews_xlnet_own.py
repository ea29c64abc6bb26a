"""Aspects in restaurant reviews: XLNet with two-stream machinery off, segment memory carried from page to page, five heads, clipping by value, fp32."""

import torch
from torch import nn
from transformers import XLNetConfig, XLNetModel

ASPECTS = ("food", "service", "price", "place", "wait")
config = XLNetConfig(vocab_size=32000, d_model=768, n_layer=9, n_head=12, d_inner=3072, mem_len=256)


class AspectNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = XLNetModel(config)
        self.heads = nn.ModuleDict({a: nn.Linear(config.d_model, 3) for a in ASPECTS})

    def forward(self, ids, mems=None):
        out = self.encoder(input_ids=ids, mems=mems, use_mems=True)
        summary = out.last_hidden_state[:, -1]
        return {a: head(summary) for a, head in self.heads.items()}, out.mems


def review(pages=2, batch=4, length=320):
    """A long review is read in pages; the verdict on each aspect is due after every page."""
    verdict = {a: torch.randint(0, 3, (batch,), device="cuda") for a in ASPECTS}
    for _ in range(pages):
        yield torch.randint(0, 32000, (batch, length), device="cuda"), verdict


net = AspectNet().cuda()
optimizer = torch.optim.Adam(
    [
        {"params": net.encoder.parameters(), "lr": 2e-5},
        {"params": net.heads.parameters(), "lr": 1e-3},
    ]
)

net.train()
for n in range(4):
    mems, total = None, 0.0
    optimizer.zero_grad()
    for page, verdict in review():
        scores, mems = net(page, mems)
        loss = sum(nn.functional.cross_entropy(scores[a], verdict[a]) for a in ASPECTS)
        loss.backward()  # the memory is detached, so each page ends its own graph
        total += loss.item()
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    optimizer.step()
    print(f"review batch {n}: {total:.4f}")
