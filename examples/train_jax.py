"""Trains a small transformer with JAX: `oomph run --gpu rtx-3060 examples/train_jax.py`."""

import argparse

import jax
import jax.numpy as jnp


def init(key, layers, width, vocabulary):
    """Weights in fp32."""
    keys = iter(jax.random.split(key, 4 * layers + 1))
    weight = lambda a, b: jax.random.normal(next(keys), (a, b)) * a**-0.5  # noqa: E731
    return {
        "embed": weight(vocabulary, width),
        "layers": [
            {
                "qkv": weight(width, 3 * width),
                "out": weight(width, width),
                "up": weight(width, 4 * width),
                "down": weight(4 * width, width),
            }
            for _ in range(layers)
        ],
    }


def norm(x):
    """Zero mean and unit variance along the width."""
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)


def block(layer, x, heads=8):
    """One layer: x is (batch, length, width)."""
    b, t, d = x.shape
    q, k, v = (a.reshape(b, t, heads, d // heads) for a in jnp.split(norm(x) @ layer["qkv"], 3, -1))
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d) @ layer["out"]
    return x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]


def loss(params, tokens):
    """Cross entropy of the next token."""
    x = params["embed"][tokens[:, :-1]]
    for layer in params["layers"]:
        x = block(layer, x)
    logits = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def main():
    """A few steps of gradient descent on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    params = init(jax.random.key(0), layers=4, width=512, vocabulary=16000)
    tokens = jax.random.randint(jax.random.key(1), (given.batch, given.length), 0, 16000)
    descend = jax.jit(
        lambda params, tokens: jax.tree.map(
            lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, tokens)
        ),
        donate_argnums=0,
    )
    for _ in range(given.steps):
        params = descend(params, tokens)
    jax.block_until_ready(params)


if __name__ == "__main__":
    main()
