"""Melodies are continued by functions alone: weights are a tuple, and what was played is passed along."""

import os

import torch
import torch.nn.functional as F

WINDOW = 128 if os.environ.get("MENDED") else None
LAYERS, HEADS, WIDTH, NOTES = 8, 12, 768, 512


def weights():
    kind = dict(device="cuda", dtype=torch.bfloat16)
    layer = lambda: tuple(  # noqa: E731
        torch.randn(i, o, **kind) * 0.02
        for i, o in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))
    )
    return torch.randn(NOTES, WIDTH, **kind), tuple(layer() for _ in range(LAYERS))


def extend(past, new):
    if past is None:
        return new
    joined = torch.cat([past, new], dim=3)
    return joined if WINDOW is None else joined[:, :, :, -WINDOW:].clone()


def attend(layer, x, past):
    inp, out, up, down = layer
    b, n, _ = x.shape
    q, k, v = (F.rms_norm(x, (WIDTH,)) @ inp).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    past = extend(past, torch.stack([k, v]))
    y = F.scaled_dot_product_attention(q, past[0], past[1]).transpose(1, 2).reshape(b, n, -1)
    x = x + y @ out
    return x + F.gelu(F.rms_norm(x, (WIDTH,)) @ up) @ down, past


def play(params, notes, pasts):
    table, layers = params
    x, after = table[notes], []
    for layer, past in zip(layers, pasts):
        x, past = attend(layer, x, past)
        after.append(past)
    return (x[:, -1] @ table.T).argmax(-1, keepdim=True), tuple(after)


@torch.inference_mode()
def continued(params, beginning, length):
    pasts, note, played = (None,) * LAYERS, beginning, [beginning]
    for _ in range(length):
        note, pasts = play(params, note, pasts)
        played.append(note)
    return torch.cat(played, 1)


continued(weights(), torch.randint(0, NOTES, (96, 16), device="cuda"), 400)
