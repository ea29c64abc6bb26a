"""A student of three layers learns the distribution over all words from its teacher, as closures."""

import os

import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")
WORDS, LENGTH, TEXTS, HOT = 96_000, 128, 8, 2.0


def decoder(width, depth):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    return nn.ModuleDict(
        dict(
            words=nn.Embedding(WORDS, width),
            body=nn.TransformerEncoder(layer, depth, enable_nested_tensor=False),
        )
    )


def reader(net):
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, device="cuda")

    def read(ids):
        return net["body"](net["words"](ids), mask=causal, is_causal=True)

    return read


def distiller(student, teacher):
    def divergence(s, t):
        told = log_softmax(t @ teacher["words"].weight.T / HOT, -1)
        heard = log_softmax(s @ student["words"].weight.T / HOT, -1)
        return kl_div(heard, told, reduction="sum", log_target=True) * HOT**2

    read_s, read_t = reader(student), reader(teacher)

    def loss_of(ids):
        with torch.no_grad():
            t = read_t(ids).flatten(0, 1)
        s = read_s(ids).flatten(0, 1)
        if MENDED:  # 64 places at a time, and again in backward
            parts = zip(s.split(64), t.split(64))
            total = sum(checkpoint(divergence, a, b, use_reentrant=False) for a, b in parts)
        else:
            total = divergence(s, t)
        return total / ids.numel()

    return loss_of


teacher = decoder(512, 6).cuda().eval().requires_grad_(False)
student = decoder(256, 3).cuda()
loss_of = distiller(student, teacher)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(3):
    loss_of(torch.randint(0, WORDS, (TEXTS, LENGTH), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
