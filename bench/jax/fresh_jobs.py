"""Eight more JAX jobs, in plain JAX: `python bench/jax/fresh_jobs.py NAME` prints what it took, as `jobs.py` does.

They were written and measured on a GPU before anything of oomph was tried on them.
"""

import functools
import sys

import jobs

STEPS = 4


def adam(grads, state, params, rate=1e-3):
    """A step of Adam on trees: the new parameters and state."""
    import jax
    import jax.numpy as jnp

    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], grads)
    new = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return new, {"first": first, "second": second}


def adam_state(params):
    import jax
    import jax.numpy as jnp

    zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
    return {"first": zeros(), "second": zeros()}


def normal(keys, *sizes, scale=None):
    import jax

    fan = 1
    for size in sizes[:-1]:
        fan *= size
    return jax.random.normal(next(keys), sizes) * (scale or fan**-0.5)


def keys_of(seed):
    import jax

    return iter(jax.random.split(jax.random.key(seed), 256))


def gpt_scan_remat():
    """Twelve blocks under one scan, each rematerialized; master weights in float32, products in bfloat16."""
    import jax
    import jax.numpy as jnp

    layers, d, heads, vocabulary, b, t = 12, 768, 12, 50304, 8, 1024
    keys = keys_of(0)
    params = {
        "embed": normal(keys, vocabulary, d, scale=0.02), "place": normal(keys, t, d, scale=0.02),
        "blocks": {
            "scale1": jnp.ones((layers, d)), "scale2": jnp.ones((layers, d)),
            "qkv": normal(keys, layers, d, 3 * d, scale=0.02), "out": normal(keys, layers, d, d, scale=0.02),
            "up": normal(keys, layers, d, 4 * d, scale=0.02), "down": normal(keys, layers, 4 * d, d, scale=0.02),
        },
    }  # fmt: skip

    def norm(x, scale):
        x = x.astype("float32")
        return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale).astype(
            "bfloat16"
        )

    @jax.checkpoint
    def block(x, layer):
        weight = {name: value.astype("bfloat16") for name, value in layer.items()}
        split = lambda a: a.reshape(b, t, heads, d // heads).swapaxes(1, 2)  # noqa: E731
        q, k, v = map(split, jnp.split(norm(x, layer["scale1"]) @ weight["qkv"], 3, -1))
        scores = (q @ k.swapaxes(-1, -2)).astype("float32") * (d // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
        mixed = jax.nn.softmax(scores).astype("bfloat16") @ v
        x = x + mixed.swapaxes(1, 2).reshape(b, t, d) @ weight["out"]
        return x + jax.nn.silu(norm(x, layer["scale2"]) @ weight["up"]) @ weight["down"], None

    def loss(params, tokens):
        x = (params["embed"][tokens] + params["place"]).astype("bfloat16")
        x, _ = jax.lax.scan(block, x, params["blocks"])
        logits = (x @ params["embed"].T.astype("bfloat16")).astype("float32")
        chosen = jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1)[..., 0]
        return (jax.nn.logsumexp(logits[:, :-1], -1) - chosen).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return *adam(grads, state, params), value

    state, tokens = (
        adam_state(params),
        jax.random.randint(jax.random.key(1), (b, t), 0, vocabulary),
    )
    for _ in range(STEPS):
        params, state, value = step(params, state, tokens)
    return value


def convolution(x, w, stride=1):
    import jax

    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=names
    )


def resnet():
    """Batch normalization with running means, and momentum; nothing is donated."""
    import jax
    import jax.numpy as jnp

    keys, plan = keys_of(2), [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)]
    params, wide = {"stem": normal(keys, 7, 7, 3, 64)}, 64
    for at, (width, _) in enumerate(plan):
        params[f"block{at}"] = {
            "a": normal(keys, 3, 3, wide, width), "b": normal(keys, 3, 3, width, width),
            "scale": jnp.ones((2, width)), "shift": jnp.zeros((2, width)),
        } | ({"skip": normal(keys, 1, 1, wide, width)} if wide != width else {})  # fmt: skip
        wide = width
    params["head"] = normal(keys, wide, 1000)
    means = {f"block{at}": jnp.zeros((2, width)) for at, (width, _) in enumerate(plan)}

    def apply(params, means, x):
        x, new = jax.nn.relu(convolution(x, params["stem"], 2)), {}
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for at, (_, stride) in enumerate(plan):
            layer, kept, y = params[f"block{at}"], [], x
            for index, name in enumerate("ab"):
                y = convolution(y, layer[name], stride if index == 0 else 1)
                mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
                kept.append(0.9 * means[f"block{at}"][index] + 0.1 * mean)
                y = (y - mean) * jax.lax.rsqrt(var + 1e-5)
                y = y * layer["scale"][index] + layer["shift"][index]
                y = jax.nn.relu(y) if index == 0 else y
            new[f"block{at}"] = jnp.stack(kept)
            x = jax.nn.relu(y + (convolution(x, layer["skip"], stride) if "skip" in layer else x))
        return x.mean((1, 2)) @ params["head"], new

    def loss(params, means, x, labels):
        logits, new = apply(params, means, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), new

    @jax.jit
    def step(params, momentum, means, x, labels):
        grads, means = jax.grad(loss, has_aux=True)(params, means, x, labels)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, means

    momentum = jax.tree.map(jnp.zeros_like, params)
    x, labels = jax.random.normal(jax.random.key(3), (96, 224, 224, 3)), jnp.zeros((96,), int)
    for _ in range(STEPS):
        params, momentum, means = step(params, momentum, means, x, labels)
    return params


def lstm_language():
    """Two layers of an LSTM over 256 tokens."""
    import jax
    import jax.numpy as jnp

    d, b, t, vocabulary = 768, 128, 256, 10000
    keys = keys_of(4)
    params = {
        "embed": normal(keys, vocabulary, d, scale=0.1), "head": normal(keys, d, vocabulary),
        "cells": [{"x": normal(keys, d, 4 * d), "h": normal(keys, d, 4 * d), "b": jnp.zeros((4 * d,))} for _ in range(2)],
    }  # fmt: skip

    def layer(cell, xs):
        def one(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x + h @ cell["h"] + cell["b"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        begin = (jnp.zeros((b, d)), jnp.zeros((b, d)))
        return jax.lax.scan(one, begin, xs @ cell["x"])[1]

    def loss(params, tokens):
        x = params["embed"][tokens.T]
        for cell in params["cells"]:
            x = layer(cell, x)
        logits = jax.nn.log_softmax(x[:-1] @ params["head"])
        return -jnp.take_along_axis(logits, tokens.T[1:, :, None], -1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, tokens):
        grads = jax.grad(loss)(params, tokens)
        size = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda p, g: p - 0.5 * g / jnp.maximum(1, size), params, grads)

    tokens = jax.random.randint(jax.random.key(5), (b, t), 0, vocabulary)
    for _ in range(STEPS):
        params = step(params, tokens)
    return params


def gan():
    """Generator and discriminator by turns, each a jitted step of its own."""
    import jax
    import jax.numpy as jnp

    keys, widths = keys_of(6), [512, 256, 128, 64]
    generator = {"first": normal(keys, 128, 8 * 8 * 512)} | {
        f"up{at}": normal(keys, 4, 4, a, b) for at, (a, b) in enumerate(zip(widths, [*widths[1:], 3]))
    }  # fmt: skip
    judge = {f"down{at}": normal(keys, 4, 4, a, b) for at, (a, b) in enumerate(zip([3, 64, 128, 256], [64, 128, 256, 512]))}  # fmt: skip
    judge["last"] = normal(keys, 8 * 8 * 512, 1)

    def make(params, z):
        x = jax.nn.relu(z @ params["first"]).reshape(-1, 8, 8, 512)
        for at in range(4):
            x = jax.lax.conv_transpose(
                x, params[f"up{at}"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jnp.tanh(x) if at == 3 else jax.nn.relu(x)
        return x

    def score(params, x):
        for at in range(4):
            x = jax.nn.leaky_relu(convolution(x, params[f"down{at}"], 2), 0.2)
        return x.reshape(x.shape[0], -1) @ params["last"]

    @jax.jit
    def judge_step(judge, state, generator, real, z):
        def loss(p):
            fake = make(generator, z)
            return (jax.nn.softplus(-score(p, real)) + jax.nn.softplus(score(p, fake))).mean()

        return adam(jax.grad(loss)(judge), state, judge)

    @jax.jit
    def make_step(generator, state, judge, z):
        grads = jax.grad(lambda p: jax.nn.softplus(-score(judge, make(p, z))).mean())(generator)
        return adam(grads, state, generator)

    states = adam_state(judge), adam_state(generator)
    real = jnp.ones((128, 128, 128, 3))
    for at in range(STEPS):
        z = jax.random.normal(jax.random.key(at), (128, 128))
        judge, first = judge_step(judge, states[0], generator, real, z)
        generator, second = make_step(generator, states[1], judge, z)
        states = first, second
    return generator


def vae():
    """A dense variational autoencoder: random numbers inside of the step, which is not donated, and an evaluation after each."""
    import jax
    import jax.numpy as jnp

    keys = keys_of(7)
    make = lambda sizes: [{"w": normal(keys, a, b), "b": jnp.zeros((b,))} for a, b in zip(sizes, sizes[1:])]  # noqa: E731 # fmt: skip
    params = {"encode": make([3072, 4096, 4096, 512]), "decode": make([256, 4096, 4096, 3072])}

    def dense(layers, x):
        for layer in layers[:-1]:
            x = jax.nn.elu(x @ layer["w"] + layer["b"])
        return x @ layers[-1]["w"] + layers[-1]["b"]

    def loss(params, x, key):
        mean, spread = jnp.split(dense(params["encode"], x), 2, -1)
        z = mean + jnp.exp(spread / 2) * jax.random.normal(key, mean.shape)
        kl = 0.5 * (jnp.exp(spread) + mean**2 - 1 - spread).sum(-1)
        return (((dense(params["decode"], z) - x) ** 2).sum(-1) + kl).mean()

    @jax.jit
    def step(params, state, x, key):
        return adam(jax.grad(loss)(params, x, key), state, params)

    evaluate = jax.jit(lambda params, x, key: jax.lax.map(lambda k: loss(params, x, k), key))
    state, x = adam_state(params), jnp.ones((16384, 3072))
    for at in range(STEPS):
        params, state = step(params, state, x, jax.random.key(at))
        value = evaluate(params, x, jax.random.split(jax.random.key(at), 4))
    return value


def molecular_dynamics():
    """Forces of all pairs by a gradient, fifty steps of velocity Verlet in one scan, a histogram of distances."""
    import jax
    import jax.numpy as jnp

    count, box = 6000, 20.0
    place = jax.random.uniform(jax.random.key(8), (count, 3)) * box

    def energy(place):
        apart = place[:, None] - place[None]
        apart = apart - box * jnp.round(apart / box)
        square = (apart**2).sum(-1) + jnp.eye(count)
        inverse = jnp.where(square < 6.25, 1 / square, 0) ** 3
        return 2 * (inverse**2 - inverse).sum()

    force = lambda place: -jax.grad(energy)(place)  # noqa: E731

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def simulate(place, speed):
        def one(carry, _):
            place, speed, pull = carry
            speed = speed + 5e-4 * pull
            place = (place + 1e-3 * speed) % box
            pull = force(place)
            speed = speed + 5e-4 * pull
            return (place, speed, pull), (speed**2).sum()

        (place, speed, _), kinetic = jax.lax.scan(one, (place, speed, force(place)), length=50)
        return place, speed, kinetic

    @jax.jit
    def distances(place):
        apart = jnp.sqrt(((place[:, None] - place[None]) ** 2).sum(-1))
        return jnp.histogram(apart, bins=64, range=(0.0, box))[0]

    speed = jnp.zeros((count, 3))
    for _ in range(STEPS):
        place, speed, kinetic = simulate(place, speed)
        seen = distances(place)
    return kinetic, seen


def pinn():
    """The heat equation at half a million points: second derivatives by forward over reverse, under vmap; ten steps of Adam in a loop."""
    import jax
    import jax.numpy as jnp

    keys = keys_of(9)
    sizes = [3, 256, 256, 256, 1]
    params = [{"w": normal(keys, a, b), "b": jnp.zeros((b,))} for a, b in zip(sizes, sizes[1:])]

    def value(params, point):
        for layer in params[:-1]:
            point = jnp.tanh(point @ layer["w"] + layer["b"])
        return (point @ params[-1]["w"] + params[-1]["b"])[0]

    def residual(params, point):
        first = jax.grad(value, 1)
        along = lambda axis: jax.jvp(lambda at: first(params, at), (point,), (jnp.eye(3)[axis],))[1][axis]  # noqa: E731 # fmt: skip
        return first(params, point)[2] - 0.1 * (along(0) + along(1))

    def loss(params, points, edge):
        inside = jax.vmap(residual, (None, 0))(params, points)
        return (inside**2).mean() + (jax.vmap(value, (None, 0))(params, edge) ** 2).mean()

    @jax.jit
    def ten(params, state, points, edge):
        one = lambda _, carry: adam(jax.grad(loss)(carry[0], points, edge), carry[1], carry[0])  # noqa: E731 # fmt: skip
        return jax.lax.fori_loop(0, 10, one, (params, state))

    state = adam_state(params)
    for at in range(STEPS):
        points = jax.random.uniform(jax.random.key(at), (1 << 19, 3))
        params, state = ten(params, state, points, points[:4096])
    return params


def diffusion_unet():
    """A U-Net in bfloat16 with group norms and attention at its lowest resolution; its running average is kept; all is donated."""
    import jax
    import jax.numpy as jnp

    keys, widths = keys_of(10), [64, 128, 256]

    def residual(a, b):
        return {"a": normal(keys, 3, 3, a, b), "b": normal(keys, 3, 3, b, b), "time": normal(keys, 256, b),
                "skip": normal(keys, 1, 1, a, b)}  # fmt: skip

    params = {
        "stem": normal(keys, 3, 3, 3, 64), "last": normal(keys, 3, 3, 64, 3), "time": normal(keys, 64, 256),
        "down": [residual(a, b) for a, b in zip([64, *widths], widths)],
        "middle": residual(256, 256), "qkv": normal(keys, 256, 768), "out": normal(keys, 256, 256),
        "up": [residual(2 * b, a) for b, a in zip(widths[::-1], [128, 64, 64])],
    }  # fmt: skip

    def group_norm(x):
        n, h, w, c = x.shape
        y = x.reshape(n, h, w, 16, c // 16).astype("float32")
        y = (y - y.mean((1, 2, 4), keepdims=True)) * jax.lax.rsqrt(
            y.var((1, 2, 4), keepdims=True) + 1e-5
        )
        return y.reshape(x.shape).astype(x.dtype)

    def apply(layer, x, when):
        y = convolution(jax.nn.silu(group_norm(x)), layer["a"])
        y = y + (when @ layer["time"].astype(x.dtype))[:, None, None]
        y = convolution(jax.nn.silu(group_norm(y)), layer["b"])
        return y + convolution(x, layer["skip"])

    def attend(params, x):
        n, h, w, c = x.shape
        y = group_norm(x).reshape(n, h * w, c) @ params["qkv"].astype(x.dtype)
        q, k, v = (a.reshape(n, h * w, 4, c // 4) for a in jnp.split(y, 3, -1))
        y = jax.nn.dot_product_attention(q, k, v).reshape(n, h * w, c)
        return x + (y @ params["out"].astype(x.dtype)).reshape(x.shape)

    def noise_of(params, x, when):
        wave = when[:, None] * jnp.exp(-jnp.arange(32) / 4)
        when = jnp.concatenate([jnp.sin(wave), jnp.cos(wave)], -1)
        when = jax.nn.silu(when @ params["time"]).astype("bfloat16")
        x, kept = convolution(x.astype("bfloat16"), params["stem"]), []
        for layer in params["down"]:
            x = apply(layer, x, when)
            kept.append(x)
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
        x = attend(params, apply(params["middle"], x, when))
        for layer, beside in zip(params["up"], kept[::-1]):
            x = jax.image.resize(x, beside.shape[:3] + x.shape[3:], "nearest")
            x = apply(layer, jnp.concatenate([x, beside], -1), when)
        return convolution(x, params["last"]).astype("float32")

    def loss(params, images, key):
        a, b = jax.random.split(key)
        when, noise = jax.random.uniform(a, images.shape[:1]), jax.random.normal(b, images.shape)
        mixed = images * jnp.cos(when)[:, None, None, None] + noise * jnp.sin(when)[:, None, None, None]  # fmt: skip
        return ((noise_of(params, mixed, when) - noise) ** 2).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, state, average, images, key):
        params, state = adam(jax.grad(loss)(params, images, key), state, params)
        return params, state, jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p, average, params)

    state, average = adam_state(params), jax.tree.map(jnp.copy, params)
    images = jnp.ones((64, 64, 64, 3))
    for at in range(STEPS):
        params, state, average = step(params, state, average, images, jax.random.key(at))
    return average


JOBS = {
    job.__name__: job
    for job in (
        gpt_scan_remat, resnet, lstm_language, gan, vae, molecular_dynamics, pinn, diffusion_unet,
    )
}  # fmt: skip


if __name__ == "__main__":
    jobs.main(sys.argv[1], JOBS)
