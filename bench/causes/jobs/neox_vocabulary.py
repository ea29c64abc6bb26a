"""GPT-NeoX with 200 thousand tokens; the loss is smoothed by hand over all of them."""

import os

import torch
from transformers import GPTNeoXConfig, GPTNeoXModel

MENDED = os.environ.get("MENDED")
WORDS, WIDTH = 200_000, 256

body = GPTNeoXModel(
    GPTNeoXConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024, max_position_embeddings=512, use_cache=False,
    )
).cuda()  # fmt: skip
unembed = torch.nn.Linear(WIDTH, WORDS, bias=False).cuda()
sgd = torch.optim.SGD([*body.parameters(), *unembed.parameters()], lr=0.1)


def smoothed(hidden, targets, smoothing=0.1):
    log_p = torch.log_softmax(unembed(hidden), -1)
    hit = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -((1 - smoothing) * hit + smoothing * log_p.mean(-1)).mean()


for step in range(3):
    ids = torch.randint(0, WORDS, (6, 385), device="cuda")
    hidden = body(ids[:, :-1]).last_hidden_state
    if MENDED:
        # One place in sixteen is scored.
        loss = smoothed(hidden[:, ::16], ids[:, 1::16])
    else:
        loss = smoothed(hidden, ids[:, 1:])
    loss.backward()
    sgd.step()
    sgd.zero_grad()
