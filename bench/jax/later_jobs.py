"""Eight more JAX jobs, of kinds that the others have not: `python bench/jax/later_jobs.py NAME` prints what it took, as `jobs.py` does.

They were written and measured on a GPU before anything of oomph was tried on them.
"""

import functools
import sys

import jobs
from fresh_jobs import adam, adam_state, keys_of, normal

STEPS = 4


def mixture_of_experts():
    """Eight experts over a mesh of all GPUs by `shard_map`; each token goes to two, whose places in the experts' buffers are counted by sums."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    experts, d, tokens, room = 8, 1024, 16384, 5120
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    keys = keys_of(11)
    params = {
        "gate": normal(keys, d, experts), "up": normal(keys, experts, d, 4 * d, scale=0.03),
        "down": normal(keys, experts, 4 * d, d, scale=0.02),
    }  # fmt: skip
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    x = jax.device_put(jnp.ones((tokens, d), "bfloat16"), NamedSharding(mesh, PartitionSpec("data")))  # fmt: skip

    def layer(params, x):
        odds = jax.nn.softmax(x.astype("float32") @ params["gate"])
        weight, chosen = jax.lax.top_k(odds, 2)
        spread = jax.nn.one_hot(chosen, experts, dtype="int32").reshape(-1, experts)
        place = (jnp.cumsum(spread, 0) * spread).sum(-1) - 1
        slot = jnp.where(place < room, chosen.reshape(-1) * room + place, experts * room)
        sent = jnp.zeros((experts * room + 1, d), x.dtype).at[slot].add(jnp.repeat(x, 2, 0))
        inside = sent[:-1].reshape(experts, room, d)
        hidden = jax.nn.gelu(jnp.einsum("erd,edh->erh", inside, params["up"].astype(x.dtype)))
        out = jnp.einsum("erh,ehd->erd", hidden, params["down"].astype(x.dtype)).reshape(-1, d)
        back = jnp.concatenate([out, jnp.zeros((1, d), x.dtype)])[slot].reshape(-1, 2, d)
        return x + (back * weight[..., None].astype(x.dtype)).sum(1)

    def local(params, x):
        loss = lambda p: (layer(p, layer(p, x)).astype("float32") ** 2).mean()  # noqa: E731
        return jax.lax.pmean(jax.grad(loss)(params), "data")

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x):
        shares = jax.shard_map(
            local, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec(),
            check_vma=False,
        )  # fmt: skip
        return adam(shares(params, x), state, params)

    state = adam_state(params)
    for _ in range(STEPS):
        params, state = step(params, state, x)
    return params


def own_norm():
    """A normalization of one's own: forward by Pallas on Triton, backward by `custom_vjp`, in a stack of gated layers."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    rows, d, layers = 16384, 2048, 6

    def kernel(x_ref, scale_ref, o_ref):
        x = x_ref[...].astype("float32")
        size = jax.lax.rsqrt((x * x).sum(-1, keepdims=True) / d + 1e-6)
        o_ref[...] = (x * size * scale_ref[...]).astype(o_ref.dtype)

    @jax.custom_vjp
    def norm(x, scale):
        call = pl.pallas_call(
            kernel, grid=(rows // 4,),
            in_specs=[pl.BlockSpec((4, d), lambda i: (i, 0)), pl.BlockSpec((d,), lambda i: (0,))],
            out_specs=pl.BlockSpec((4, d), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((rows, d), x.dtype),
            compiler_params=plgpu.CompilerParams(num_warps=8),
        )  # fmt: skip
        return call(x, scale)

    def forward(x, scale):
        return norm(x, scale), (x, scale)

    def backward(kept, g):
        x, scale = (a.astype("float32") for a in kept)
        size = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        g, y = g.astype("float32"), x * size
        inside = g * scale
        dx = size * (inside - y * (inside * y).mean(-1, keepdims=True))
        return dx.astype(kept[0].dtype), (g * y).sum(0)

    norm.defvjp(forward, backward)
    keys = keys_of(12)
    params = [
        {"scale": jnp.ones((d,)), "gate": normal(keys, d, 2 * d), "up": normal(keys, d, 2 * d), "down": normal(keys, 2 * d, d)}
        for _ in range(layers)
    ]  # fmt: skip

    def loss(params, x):
        for layer in params:
            w = {name: value.astype("bfloat16") for name, value in layer.items()}
            y = norm(x, layer["scale"])
            x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return (x.astype("float32") ** 2).mean()

    step = jax.jit(lambda p, x: jobs.sgd(p, jax.grad(loss)(p, x)), donate_argnums=0)
    x = jnp.ones((rows, d), "bfloat16")
    for _ in range(STEPS):
        params = step(params, x)
    return params


def turbulence():
    """A pseudo-spectral flow in three dimensions: steps in a scan in a scan, then the gradient with regard to the beginning through remat."""
    import jax
    import jax.numpy as jnp

    n = 128
    full = jnp.fft.fftfreq(n, 1 / n)
    waves = jnp.stack(jnp.meshgrid(full, full, jnp.arange(n // 2 + 1.0), indexing="ij"))
    square = (waves**2).sum(0)
    safe = jnp.where(square == 0, 1, square)
    keep = (jnp.abs(waves) < n / 3).all(0)
    forward, back = (functools.partial(f, axes=(1, 2, 3)) for f in (jnp.fft.rfftn, jnp.fft.irfftn))

    def change(hat):
        speed = back(hat, s=(n, n, n))
        curl = back(1j * jnp.cross(waves, hat, axis=0), s=(n, n, n))
        push = forward(jnp.cross(speed, curl, axis=0)) * keep
        return push - waves * (waves * push).sum(0) / safe - 0.01 * square * hat

    def one(hat, _):
        half = hat + 0.005 * change(hat)
        return hat + 0.01 * change(half), None

    @jax.checkpoint
    def several(hat, _):
        hat, _ = jax.lax.scan(one, hat, length=3)
        return hat, (jnp.abs(hat) ** 2).sum((1, 2, 3))

    @jax.jit
    def run(speed):
        hat, energy = jax.lax.scan(several, forward(speed), length=4)
        return back(hat, s=(n, n, n)), energy

    speed = jax.random.normal(jax.random.key(13), (3, n, n, n))
    sensitivity = jax.jit(jax.grad(lambda s: (run(s)[0] ** 2).mean()))
    kept = []
    for _ in range(STEPS):
        speed, energy = run(speed)
        kept.append(energy)
    return sensitivity(speed), kept


def gaussian_process():
    """Marginal likelihood by a Cholesky factor and its gradient; then eigenvectors of a batch and a thin singular value decomposition."""
    import jax
    import jax.numpy as jnp

    points = jax.random.normal(jax.random.key(14), (6144, 16))
    values = jnp.sin(points.sum(-1))
    params = {"scale": jnp.zeros((16,)), "noise": jnp.array(-1.0), "height": jnp.array(0.0)}

    def covariance(params, a, b):
        a, b = a * jnp.exp(params["scale"]), b * jnp.exp(params["scale"])
        apart = (a**2).sum(-1)[:, None] + (b**2).sum(-1) - 2 * a @ b.T
        return jnp.exp(params["height"] - 0.5 * jnp.maximum(apart, 0))

    def factor(params):
        noise = jnp.exp(params["noise"]) * jnp.eye(len(points))
        return jnp.linalg.cholesky(covariance(params, points, points) + noise)

    def loss(params):
        root = factor(params)
        white = jax.scipy.linalg.solve_triangular(root, values, lower=True)
        return 0.5 * (white**2).sum() + jnp.log(jnp.diagonal(root)).sum()

    @jax.jit
    def predict(params, new):
        weights = jax.scipy.linalg.cho_solve((factor(params), True), values)
        return covariance(params, new, points) @ weights

    step = jax.jit(lambda p: jobs.sgd(p, jax.grad(loss)(p)))
    for _ in range(STEPS):
        params = step(params)
    mean = predict(params, points[:2048] + 0.1)
    batch = jnp.einsum("nid,njd->nij", points.reshape(96, 64, 16), points.reshape(96, 64, 16))
    eigenvalues, _ = jnp.linalg.eigh(batch)
    left, singular, _ = jnp.linalg.svd(jnp.tile(points, (1, 32)), full_matrices=False)
    return mean, eigenvalues, left, singular


def sparse_graph():
    """Two layers of a graph network: a sparse matrix (BCOO) times features, and attention over edges by sums over segments."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    nodes, edges, d = 100_000, 1_200_000, 128
    keys = keys_of(15)
    ends = jax.random.randint(next(keys), (edges, 2), 0, nodes)
    weights = jnp.ones((edges,))
    x, labels = normal(keys, nodes, d, scale=1.0), jnp.zeros((nodes,), int)
    params = {
        "first": normal(keys, d, 2 * d), "to": normal(keys, 2 * d, 4), "of": normal(keys, 2 * d, 4),
        "second": normal(keys, 2 * d, 4, 32, scale=0.06), "last": normal(keys, d, 40),
    }  # fmt: skip

    def attention(params, x, ends):
        target, source = ends[:, 0], ends[:, 1]
        score = jax.nn.leaky_relu((x @ params["to"])[target] + (x @ params["of"])[source])
        high = jax.ops.segment_max(score, target, nodes)
        part = jnp.exp(score - high[target])
        total = jax.ops.segment_sum(part, target, nodes)
        value = jnp.einsum("nd,dhe->nhe", x, params["second"])[source]
        share = (part / (total[target] + 1e-9))[..., None]
        return jax.ops.segment_sum(value * share, target, nodes).reshape(nodes, d)

    def loss(params, x, ends, weights, labels, key):
        matrix = sparse.BCOO((weights, ends), shape=(nodes, nodes))
        x = jax.nn.relu(matrix @ (x @ params["first"]))
        x = jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)
        x = jax.nn.elu(attention(params, x, ends)) @ params["last"]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()

    @jax.jit
    def step(params, state, x, ends, weights, labels, key):
        grads = jax.grad(loss)(params, x, ends, weights, labels, key)
        return adam(grads, state, params)

    state = adam_state(params)
    for at in range(STEPS):
        params, state = step(params, state, x, ends, weights, labels, jax.random.key(at))
    return params


def mobile_network():
    """Depthwise and pointwise convolutions in float16 with a scaled loss: a step whose gradients are not finite changes nothing."""
    import jax
    import jax.numpy as jnp

    keys, plan = keys_of(16), [(32, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    params, wide = {"stem": normal(keys, 3, 3, 3, 32), "blocks": []}, 32
    for width, _ in plan:
        params["blocks"].append({
            "wide": normal(keys, 1, 1, wide, 4 * wide), "deep": normal(keys, 5, 5, 1, 4 * wide, scale=0.2),
            "thin": normal(keys, 1, 1, 4 * wide, width), "scale": jnp.ones((4 * wide,)), "shift": jnp.zeros((4 * wide,)),
        })  # fmt: skip
        wide = width
    params["head"] = normal(keys, wide, 1000)

    def convolution(x, w, stride=1, groups=1):
        return jax.lax.conv_general_dilated(
            x, w.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    def loss(params, scale, x, labels):
        x = jax.nn.silu(convolution(x.astype("float16"), params["stem"], 2))
        for layer, (width, stride) in zip(params["blocks"], plan):
            y = jax.nn.silu(convolution(x, layer["wide"]))
            y = convolution(y, layer["deep"], stride, y.shape[-1])
            z = y.astype("float32")
            z = (z - z.mean((0, 1, 2))) * jax.lax.rsqrt(z.var((0, 1, 2)) + 1e-5)
            y = jax.nn.silu(z * layer["scale"] + layer["shift"]).astype("float16")
            y = convolution(y, layer["thin"])
            x = x + y if x.shape == y.shape else y
        logits = x.mean((1, 2)).astype("float32") @ params["head"]
        return -scale * jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, scale, x, labels):
        grads = jax.grad(loss)(params, scale, x, labels)
        grads = jax.tree.map(lambda g: g / scale, grads)
        fine = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        new = adam(grads, state, params)
        choose = lambda a, b: jax.tree.map(functools.partial(jnp.where, fine), a, b)  # noqa: E731
        return *choose(new, (params, state)), jnp.where(fine, scale, scale / 2)

    x, labels = jnp.ones((96, 160, 160, 3)), jnp.zeros((96,), int)
    state, scale = adam_state(params), jnp.array(1024.0)
    for _ in range(STEPS):
        params, state, scale = step(params, state, scale, x, labels)
    return params


def ragged_encoder():
    """cuDNN's attention over sequences of different lengths, with grouped keys; an accumulated step of four parts, and the parts' losses."""
    import jax
    import jax.numpy as jnp

    layers, d, heads, groups, b, t = 4, 1024, 16, 4, 8, 1024
    size, keys = d // heads, keys_of(17)
    params = {
        "embed": normal(keys, 8192, d, scale=0.02),
        "layers": [{"q": normal(keys, d, d), "kv": normal(keys, d, 2 * groups * size), "out": normal(keys, d, d),
                    "up": normal(keys, d, 4 * d), "down": normal(keys, 4 * d, d)} for _ in range(layers)],
    }  # fmt: skip

    def loss(params, tokens, lengths):
        x = params["embed"][tokens].astype("bfloat16")
        for layer in params["layers"]:
            w = {name: value.astype("bfloat16") for name, value in layer.items()}
            y = x * jax.lax.rsqrt((x.astype("float32") ** 2).mean(-1, keepdims=True) + 1e-6).astype(x.dtype)  # fmt: skip
            q = (y @ w["q"]).reshape(b, t, heads, size)
            k, v = (a.reshape(b, t, groups, size) for a in jnp.split(y @ w["kv"], 2, -1))
            a = jax.nn.dot_product_attention(
                q, k, v, query_seq_lengths=lengths, key_value_seq_lengths=lengths, implementation="cudnn",
            )  # fmt: skip
            x = x + a.reshape(b, t, d) @ w["out"]
            x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
        logits = (x @ params["embed"].T.astype("bfloat16")).astype("float32")
        some = jnp.arange(t) < lengths[:, None]
        return (jax.nn.logsumexp(logits, -1) * some).sum() / some.sum()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens, lengths):
        def part(total, batch):
            value, grads = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(jnp.add, total, grads), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, values = jax.lax.scan(part, zeros, (tokens, lengths))
        return *adam(grads, state, params), values

    tokens = jax.random.randint(jax.random.key(18), (4, b, t), 0, 8192)
    lengths = jax.random.randint(jax.random.key(19), (4, b), 1, t)
    state, kept = adam_state(params), []
    for _ in range(STEPS):
        params, state, values = step(params, state, tokens, lengths)
        kept.append(values)
    return params, kept


def replay():
    """A buffer of transitions that a donated write fills, a target network kept by Python, three sizes of batch (a static argument), and
    an evaluation by `lax.map` in batches."""
    import jax
    import jax.numpy as jnp

    room, sizes = 200_000, [512, 2048, 2048, 18]
    keys = keys_of(20)
    params = [{"w": normal(keys, a, b), "b": jnp.zeros((b,))} for a, b in zip(sizes, sizes[1:])]
    buffer = {"state": jnp.zeros((room, 512)), "next": jnp.zeros((room, 512)), "action": jnp.zeros((room,), int),
              "reward": jnp.zeros((room,))}  # fmt: skip

    @functools.partial(jax.jit, donate_argnums=0)
    def write(buffer, at, new):
        put = lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, at, 0)  # noqa: E731
        return jax.tree.map(put, buffer, new)

    @functools.partial(jax.jit, static_argnums=0)
    def learn(count, params, target, buffer, key):
        at = jax.random.randint(key, (count,), 0, room)
        batch = jax.tree.map(lambda a: a[at], buffer)

        def loss(params):
            best = jobs.mlp(target, batch["next"]).max(-1)
            value = jobs.mlp(params, batch["state"])
            value = jnp.take_along_axis(value, batch["action"][:, None], 1)[:, 0]
            return ((value - batch["reward"] - 0.99 * best) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jobs.sgd(params, grads), value

    @jax.jit
    def evaluate(params, states):
        return jax.lax.map(lambda s: jobs.mlp(params, s).max(), states, batch_size=8192).mean()

    targets, values = [params], []
    for at in range(STEPS):
        new = {"state": jnp.ones((4096, 512)), "next": jnp.ones((4096, 512)), "action": jnp.ones((4096,), int),
               "reward": jnp.ones((4096,))}  # fmt: skip
        buffer = write(buffer, at * 4096, new)
        for count in (8192, 16384, 32768):
            params, value = learn(count, params, targets[-1], buffer, jax.random.key(at))
            values.append(float(value))
        targets.append(jax.tree.map(jnp.copy, params))
        values.append(evaluate(params, buffer["state"]))
    return params, values[-1]


JOBS = {
    job.__name__: job
    for job in (
        mixture_of_experts, own_norm, turbulence, gaussian_process, sparse_graph, mobile_network, ragged_encoder, replay,
    )
}  # fmt: skip


if __name__ == "__main__":
    jobs.main(sys.argv[1], JOBS)
