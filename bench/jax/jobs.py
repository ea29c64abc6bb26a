"""Twenty JAX jobs, each a function that runs a few steps: `python bench/jax/jobs.py NAME` prints what it took, as JSON.

Figures are in bytes: of JAX's own allocator (`memory_stats`), and of the device (`cuMemGetInfo`).
"""

import ctypes
import functools
import json
import os
import sys

STEPS = 4
# Variables that a job starts with.
ENVIRONMENT = {
    "grows_by_doubling": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "async_allocator": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
    "platform_allocator": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
}


def sgd(params, grads, rate=1e-3):
    import jax

    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def dense(key, sizes, dtype="float32"):
    import jax

    keys = jax.random.split(key, len(sizes))
    return [
        {"w": jax.random.normal(k, (a, b), dtype) * a**-0.5, "b": jax.numpy.zeros((b,), dtype)}
        for k, a, b in zip(keys, sizes, sizes[1:])
    ]


def mlp(params, x):
    import jax

    for layer in params[:-1]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def square_loss(params, x):
    return (mlp(params, x) ** 2).mean()


def eager_mlp():
    """Gradients without jit: each operator by itself."""
    import jax

    params, x = dense(jax.random.key(0), [2048, 8192, 8192, 2048]), jax.numpy.ones((4096, 2048))
    for _ in range(STEPS):
        params = sgd(params, jax.grad(square_loss)(params, x))
    return params


def jitted_mlp():
    import jax

    params, x = dense(jax.random.key(0), [4096, 16384, 16384, 4096]), jax.numpy.ones((8192, 4096))
    step = jax.jit(lambda p, x: sgd(p, jax.grad(square_loss)(p, x)))
    for _ in range(STEPS):
        params = step(params, x)
    return params


def donated_mlp():
    import jax

    params, x = dense(jax.random.key(0), [4096, 16384, 16384, 4096]), jax.numpy.ones((8192, 4096))
    step = jax.jit(lambda p, x: sgd(p, jax.grad(square_loss)(p, x)), donate_argnums=0)
    for _ in range(STEPS):
        params = step(params, x)
    return params


def transformer_params(key, layers, width, vocabulary, dtype):
    import jax

    keys = iter(jax.random.split(key, 6 * layers + 2))
    weight = lambda a, b: jax.random.normal(next(keys), (a, b), dtype) * a**-0.5  # noqa: E731
    return {
        "embed": weight(vocabulary, width),
        "layers": [
            {"qkv": weight(width, 3 * width), "out": weight(width, width),
             "up": weight(width, 4 * width), "down": weight(4 * width, width)}
            for _ in range(layers)
        ],
    }  # fmt: skip


def block(layer, x, heads=16, implementation=None):
    import jax

    norm = lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)  # noqa: E731
    b, t, d = x.shape
    q, k, v = (
        a.reshape(b, t, heads, d // heads) for a in jax.numpy.split(norm(x) @ layer["qkv"], 3, -1)
    )
    a = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    x = x + a.reshape(b, t, d) @ layer["out"]
    return x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]


def language_loss(params, tokens, apply):
    import jax

    x = params["embed"][tokens]
    for layer in params["layers"]:
        x = apply(layer, x)
    logits = (x @ params["embed"].T).astype("float32")
    return -jax.nn.log_softmax(logits[:, :-1])[..., 0].mean()


def train_transformer(apply, batch=8, length=1024, layers=8, width=1024, dtype="bfloat16"):
    import jax

    params = transformer_params(jax.random.key(0), layers, width, 32000, dtype)
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, 32000)
    step = jax.jit(lambda p, t: sgd(p, jax.grad(language_loss)(p, t, apply)), donate_argnums=0)
    for _ in range(STEPS):
        params = step(params, tokens)
    return params


def transformer():
    return train_transformer(block)


def transformer_remat():
    import jax

    return train_transformer(jax.checkpoint(block), batch=16)


def transformer_remat_policy():
    import jax

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return train_transformer(jax.checkpoint(block, policy=policy), batch=16)


def cudnn_attention():
    return train_transformer(functools.partial(block, implementation="cudnn"), length=2048)


def scanned_layers():
    """Layers of one stacked tree under `lax.scan`."""
    import jax

    params = transformer_params(jax.random.key(0), 12, 1024, 16000, "bfloat16")
    params["layers"] = jax.tree.map(lambda *a: jax.numpy.stack(a), *params["layers"])
    tokens = jax.random.randint(jax.random.key(1), (8, 1024), 0, 16000)

    def loss(p, t):
        x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), p["embed"][t], p["layers"])
        return (x.astype("float32") ** 2).mean()

    step = jax.jit(lambda p, t: sgd(p, jax.grad(loss)(p, t)), donate_argnums=0)
    for _ in range(STEPS):
        params = step(params, tokens)
    return params


def recurrent():
    """A GRU cell over 512 steps, backwards too."""
    import jax
    import jax.numpy as jnp

    d, b, t = 1024, 256, 512
    keys = jax.random.split(jax.random.key(0), 3)
    params = {n: jax.random.normal(k, (2 * d, d)) * d**-0.5 for n, k in zip("zrh", keys)}
    x = jnp.ones((t, b, d))

    def cell(p, h, x):
        z = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p["z"])
        r = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p["r"])
        new = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["h"])
        return (1 - z) * h + z * new

    def loss(p, x):
        h, _ = jax.lax.scan(lambda h, x: (cell(p, h, x), None), jnp.zeros((b, d)), x)
        return (h**2).mean()

    step = jax.jit(lambda p, x: sgd(p, jax.grad(loss)(p, x)))
    for _ in range(STEPS):
        params = step(params, x)
    return params


def convolutions():
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 8)
    widths = [3, 64, 64, 128, 128, 256, 256, 512]
    params = [
        jax.random.normal(k, (3, 3, a, b)) * (9 * a) ** -0.5
        for k, a, b in zip(keys, widths, widths[1:])
    ]
    x = jnp.ones((64, 224, 224, 3))

    def loss(params, x):
        for at, w in enumerate(params):
            stride = 2 if at % 2 else 1
            x = jax.lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x - x.mean((0, 1, 2)))
        return (x**2).mean()

    step = jax.jit(lambda p, x: sgd(p, jax.grad(loss)(p, x)), donate_argnums=0)
    for _ in range(STEPS):
        params = step(params, x)
    return params


def per_example_gradients():
    import jax
    import jax.numpy as jnp

    params, x = dense(jax.random.key(0), [512, 1024, 512]), jnp.ones((1024, 512))

    @jax.jit
    def step(params, x):
        grads = jax.vmap(jax.grad(square_loss), (None, 0))(params, x[:, None])
        norms = sum((g**2).sum(tuple(range(1, g.ndim))) for g in jax.tree.leaves(grads)) ** 0.5
        scale = jnp.minimum(1, 1 / norms)
        return sgd(params, jax.tree.map(lambda g: jnp.einsum("n...,n->...", g, scale), grads))

    for _ in range(STEPS):
        params = step(params, x)
    return params


def spectrograms():
    import jax
    import jax.numpy as jnp

    x = jnp.ones((256, 160_000))

    @jax.jit
    def features(x):
        frames = x.reshape(256, -1, 400)
        power = jnp.abs(jnp.fft.rfft(frames * jnp.hanning(400), 512)) ** 2
        return jnp.log(power @ jnp.ones((257, 80)) + 1e-6)

    return [features(x + step) for step in range(STEPS)]


def sorted_neighbours():
    """Distances of all pairs, and the nearest of each."""
    import jax
    import jax.numpy as jnp

    points = jax.random.normal(jax.random.key(0), (16_384, 64))

    @jax.jit
    def nearest(points):
        squares = (points**2).sum(-1)
        distances = squares[:, None] + squares - 2 * points @ points.T
        return jax.lax.top_k(-distances, 16), jnp.sort(distances[:1024], -1)

    return [nearest(points + step) for step in range(STEPS)]


def generation():
    """Tokens one by one, with a cache that is donated."""
    import jax
    import jax.numpy as jnp

    params = transformer_params(jax.random.key(0), 16, 2048, 32000, "bfloat16")
    b, t, heads, d = 32, 2048, 16, 2048
    cache = [(jnp.zeros((b, t, heads, d // heads), "bfloat16"),) * 2 for _ in params["layers"]]
    cache = jax.tree.map(jnp.copy, cache)

    @functools.partial(jax.jit, donate_argnums=1)
    def decode(params, cache, token, at):
        x = params["embed"][token][:, None]
        new = []
        for layer, (keys, values) in zip(params["layers"], cache):
            q, k, v = (
                a.reshape(b, 1, heads, d // heads) for a in jnp.split(x @ layer["qkv"], 3, -1)
            )
            keys = jax.lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v, (0, at, 0, 0))
            new.append((keys, values))
            x = x + jax.nn.dot_product_attention(q, keys, values).reshape(b, 1, d) @ layer["out"]
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return new, (x[:, 0] @ params["embed"].T).argmax(-1)

    token = jnp.zeros((b,), int)
    for at in range(16):
        cache, token = decode(params, cache, token, at)
    return token


def pallas_kernel():
    """A softmax of one's own, by Pallas on Triton."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(x_ref, o_ref):
        x = x_ref[...]
        e = jnp.exp(x - x.max(-1, keepdims=True))
        o_ref[...] = e / e.sum(-1, keepdims=True)

    rows, columns = 65_536, 1024
    call = pl.pallas_call(
        kernel, grid=(rows // 8,),
        in_specs=[pl.BlockSpec((8, columns), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, columns), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), "float32"),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )  # fmt: skip
    x = jnp.ones((rows, columns))
    step = jax.jit(lambda x: call(x * 2) + 1)
    for _ in range(STEPS):
        x = step(x)
    return x


def flax_vit():
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(12, dtype=jnp.bfloat16)(y, y)
            y = nn.Dense(3072, dtype=jnp.bfloat16)(nn.LayerNorm()(x))
            return x + nn.Dense(768, dtype=jnp.bfloat16)(nn.gelu(y))

    class ViT(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(768, (16, 16), (16, 16), dtype=jnp.bfloat16)(x).reshape(x.shape[0], -1, 768)
            for _ in range(12):
                x = Block()(x)
            return nn.Dense(1000)(x.mean(1))

    model, x, y = ViT(), jnp.ones((64, 224, 224, 3)), jnp.zeros((64,), int)
    params = model.init(jax.random.key(0), x)
    optimizer = optax.adamw(1e-4)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        def loss(p):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(p, x), y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(STEPS):
        params, state = step(params, state)
    return params


def equinox_mlp():
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    model = eqx.nn.MLP(1024, 1024, 4096, 6, key=jax.random.key(0))
    optimizer = optax.adam(1e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    x = jnp.ones((8192, 1024))

    @eqx.filter_jit
    def step(model, state, x):
        loss = lambda m: (jax.vmap(m)(x) ** 2).mean()  # noqa: E731
        updates, state = optimizer.update(eqx.filter_grad(loss)(model), state)
        return eqx.apply_updates(model, updates), state

    for _ in range(STEPS):
        model, state = step(model, state, x)
    return jax.tree.leaves(model)[0]


def neural_ode():
    import diffrax
    import jax
    import jax.numpy as jnp

    params, x = dense(jax.random.key(0), [256, 1024, 256]), jnp.ones((2048, 256))

    def loss(params, x):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, p: jnp.tanh(mlp(p, y))), diffrax.Tsit5(), 0.0, 1.0, 0.02, x,
            args=params, adjoint=diffrax.RecursiveCheckpointAdjoint(), max_steps=64,
        )  # fmt: skip
        return (solution.ys**2).mean()

    step = jax.jit(lambda p, x: sgd(p, jax.grad(loss)(p, x)))
    for _ in range(STEPS):
        params = step(params, x)
    return params


def grows_by_doubling():
    import jax
    import jax.numpy as jnp

    kept = []
    for at in range(12):
        kept.append(jnp.ones((100 + 37 * at, 1 << 20)) * at)
    del kept[::2]
    return [jax.jit(lambda a: jnp.sin(a) + 1)(a) for a in kept]


def async_allocator():
    return jitted_mlp()


def platform_allocator():
    return eager_mlp()


JOBS = {
    job.__name__: job
    for job in (
        eager_mlp, jitted_mlp, donated_mlp, transformer, transformer_remat, transformer_remat_policy,
        cudnn_attention, scanned_layers, recurrent, convolutions, per_example_gradients, spectrograms,
        sorted_neighbours, generation, pallas_kernel, flax_vit, equinox_mlp, neural_ode,
        grows_by_doubling, async_allocator, platform_allocator,
    )
}  # fmt: skip


def of_device():
    """What the driver says is in use, by all."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value, total.value


def leave(free):
    """Takes all of the GPU's memory but `free` bytes: not every allocator has a limit."""
    cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    used, total = of_device()
    failed = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total - used - free))
    assert not failed, failed


def main(name, of=JOBS):
    os.environ.update(ENVIRONMENT.get(name, {}))
    if "LEAVE_FREE" in os.environ:
        leave(int(os.environ["LEAVE_FREE"]))
    import jax

    try:
        jax.block_until_ready(of[name]())
        end = "ran"
    except Exception as e:
        end = f"{type(e).__name__}: {str(e).splitlines()[0][:300]}"
    stats = jax.local_devices()[0].memory_stats() or {}
    used, total = of_device()
    print("\n" + json.dumps({
        "job": name, "end": end, "stats": stats, "device_used": used, "device_total": total,
        "backend": jax.default_backend(), "jax": jax.__version__,
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
