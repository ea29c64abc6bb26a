"""Species recognition with a convolutional mixer written without nn.Module.

All parameters live in one nested dictionary; gradients come from torch.func and the
optimizer is a few lines of Adam over the flattened tree.
"""

import math
import time

import torch
import torch.nn.functional as F
from torch.func import grad_and_value
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

WIDTH = 384
DEPTH = 12
PATCH = 7
KERNEL = 9
CLASSES = 102
IMAGE = 224
BATCH = 64
STEPS = 24
LR = 1e-3
WARMUP = 4


def glorot(generator, *shape, device):
    fan = math.prod(shape[1:])
    w = torch.randn(*shape, generator=generator) / math.sqrt(fan)
    return w.to(device)


def init(seed, device):
    g = torch.Generator().manual_seed(seed)

    def norm():
        return {
            "scale": torch.ones(WIDTH, device=device),
            "shift": torch.zeros(WIDTH, device=device),
        }

    params = {
        "stem": {"w": glorot(g, WIDTH, 3, PATCH, PATCH, device=device), "norm": norm()},
        "blocks": [],
        "head": {
            "w": glorot(g, CLASSES, WIDTH, device=device),
            "b": torch.zeros(CLASSES, device=device),
        },
    }
    for _ in range(DEPTH):
        params["blocks"].append(
            {
                "depth": {"w": glorot(g, WIDTH, 1, KERNEL, KERNEL, device=device), "norm": norm()},
                "point": {"w": glorot(g, WIDTH, WIDTH, 1, 1, device=device), "norm": norm()},
            }
        )
    return params


def group_norm(p, x):
    return F.group_norm(x, 8, p["scale"], p["shift"])


def apply(params, images):
    x = F.conv2d(images, params["stem"]["w"], stride=PATCH)
    x = group_norm(params["stem"]["norm"], F.gelu(x))
    for block in params["blocks"]:
        h = F.conv2d(x, block["depth"]["w"], padding=KERNEL // 2, groups=WIDTH)
        x = x + group_norm(block["depth"]["norm"], F.gelu(h))
        h = F.conv2d(x, block["point"]["w"])
        x = group_norm(block["point"]["norm"], F.gelu(h))
    x = x.mean(dim=(2, 3))
    return x @ params["head"]["w"].t() + params["head"]["b"]


def loss_fn(params, images, labels):
    logits = apply(params, images)
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def adam_init(params):
    zeros = tree_map(torch.zeros_like, params)
    return {"m": zeros, "v": tree_map(torch.zeros_like, params), "t": 0}


def adam_update(params, grads, state, lr, b1=0.9, b2=0.99, eps=1e-8, decay=0.02):
    state["t"] += 1
    t = state["t"]
    flat_p, spec = tree_flatten(params)
    flat_g, _ = tree_flatten(grads)
    flat_m, _ = tree_flatten(state["m"])
    flat_v, _ = tree_flatten(state["v"])
    new_p, new_m, new_v = [], [], []
    for p, g, m, v in zip(flat_p, flat_g, flat_m, flat_v):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        step = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        new_p.append(p - lr * (step + decay * p))
        new_m.append(m)
        new_v.append(v)
    state["m"] = tree_unflatten(new_m, spec)
    state["v"] = tree_unflatten(new_v, spec)
    return tree_unflatten(new_p, spec), state


def batches(n, device, seed=1):
    g = torch.Generator().manual_seed(seed)
    pool = torch.rand(BATCH, 3, IMAGE, IMAGE, generator=g)
    for _ in range(n):
        labels = torch.randint(CLASSES, (BATCH,), generator=g)
        yield (pool + labels.view(-1, 1, 1, 1) / CLASSES).to(device), labels.to(device)


def main():
    device = torch.device("cuda")
    params = init(0, device)
    state = adam_init(params)
    step_fn = grad_and_value(loss_fn)
    start = time.time()
    for i, (images, labels) in enumerate(batches(STEPS, device)):
        lr = LR * min(1.0, (i + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * i / STEPS))
        grads, loss = step_fn(params, images, labels)
        params, state = adam_update(params, grads, state, lr)
        if i % 4 == 0:
            print(f"step {i} loss {loss.item():.4f} {time.time() - start:.1f}s", flush=True)
    with torch.no_grad():
        images, labels = next(batches(1, device, seed=9))
        accuracy = (apply(params, images).argmax(-1) == labels).float().mean()
    print("accuracy", accuracy.item())


if __name__ == "__main__":
    main()
