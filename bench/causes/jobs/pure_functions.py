"""No modules and no optimizers: weights are a dictionary, and updates are functions of trees, as in JAX."""

import os

import torch
from torch.func import grad_and_value
from torch.utils._pytree import tree_map

PLAIN = bool(os.environ.get("MENDED"))
SIZES = (1024, 4096, 4096, 4096, 1024)


def init(sizes):
    return {
        f"layer{i}": {
            "w": torch.randn(a, b, device="cuda").mul_(a**-0.5),
            "b": torch.zeros(b, device="cuda"),
        }
        for i, (a, b) in enumerate(zip(sizes, sizes[1:]))
    }


def apply(params, x):
    *body, last = params.values()
    for layer in body:
        x = torch.nn.functional.gelu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss_fn(params, x, y):
    return (apply(params, x) - y).abs().mean()


def adam(lr=1e-3, b1=0.9, b2=0.99, b3=0.999, eps=1e-8):
    """Adam with a fast and a slow mean of the gradients (AdEMAMix)."""

    def start(params):
        return tuple(tree_map(torch.zeros_like, params) for _ in range(3))

    def update(grads, state, params):
        fast, slow, var = state
        tree_map(lambda m, g: m.mul_(b1).add_(g, alpha=1 - b1), fast, grads)
        tree_map(lambda m, g: m.mul_(b3).add_(g, alpha=1 - b3), slow, grads)
        tree_map(lambda v, g: v.mul_(b2).addcmul_(g, g, value=1 - b2), var, grads)

        def move(p, m, s, v):
            p.sub_((m + 5 * s).div_(v.sqrt().add_(eps)), alpha=lr)

        tree_map(move, params, fast, slow, var)
        return state

    return start, update


def sgd(lr=1e-2):
    return (
        lambda params: (),
        lambda grads, state, params: (
            tree_map(lambda p, g: p.sub_(g, alpha=lr), params, grads) and ()
        ),
    )


params, state = init(SIZES), None
start, update = sgd() if PLAIN else adam()
for step in range(4):
    x, y = torch.randn(2, 128, 1024, device="cuda")
    grads, loss = grad_and_value(loss_fn)(params, x, y)
    state = start(params) if state is None else state
    state = update(grads, state, params)
