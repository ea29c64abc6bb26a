"""Eight more CuPy jobs, whose sizes depend on values that they draw: `python bench/cupy/values.py OUT.jsonl`."""

import jobs


def rejection():
    import cupy as cp

    x = cp.random.uniform(-2, 2, 50_000_000)
    accepted = x[cp.random.rand(50_000_000) < cp.exp(-x * x)]
    return accepted, accepted[accepted > 1]


def box():
    import cupy as cp

    place = cp.random.rand(20_000_000, 3, dtype=cp.float32)
    speed = cp.random.standard_normal((20_000_000, 3), dtype=cp.float32)
    for _ in range(5):
        place += speed * 0.05
        inside = ((place >= 0) & (place < 1)).all(axis=1)
        place, speed = place[inside], speed[inside]
    return place, speed


def random_graph():
    import cupy as cp
    import cupyx.scipy.sparse as sp

    a, b = cp.random.randint(0, 20_000, 30_000_000), cp.random.randint(0, 15_000, 30_000_000)
    graph = sp.coo_matrix(
        (cp.ones(30_000_000, dtype=cp.float32), (a, b)), shape=(20_000, 15_000)
    ).tocsr()
    return graph, graph @ cp.ones((15_000, 64), dtype=cp.float32)


def sparse_random():
    import cupy as cp
    import cupyx.scipy.sparse as sp

    weights = sp.random(8000, 8000, density=0.1, format="csr", dtype=cp.float32)
    large = weights.data > 0.75
    return weights, weights.indices[large], weights.data[large], weights.T.tocsr()


def best_scores():
    import cupy as cp

    scores = cp.random.standard_normal(40_000_000, dtype=cp.float32)
    order = cp.argsort(-scores)
    kept = order[scores[order] > 1.5]
    boxes = cp.random.uniform(0, 512, (40_000_000, 4), dtype=cp.float32)
    return cp.take(boxes, kept, axis=0), scores[kept], kept


def labels():
    import cupy as cp

    drawn = cp.random.randint(0, 3_000_000, 60_000_000)
    counts = cp.bincount(drawn)
    found, inverse, number = cp.unique(drawn[:4_000_000], return_inverse=True, return_counts=True)
    return counts, cp.nonzero(counts > 25)[0], found, inverse, number, cp.histogram(drawn, bins=500)


def outliers():
    import cupy as cp

    rows = cp.random.randn(8_000_000, 16, dtype=cp.float32)
    near = cp.sqrt((rows**2).sum(axis=1)) < 4
    return rows.compress(near, axis=0), cp.argwhere(rows > 3), rows[~near]


def spikes():
    import cupy as cp

    draws = cp.random.default_rng(0)
    fired = draws.random((2_000, 50_000)) < 0.02
    step, neuron = cp.nonzero(fired)
    times = cp.empty(int(cp.count_nonzero(fired)), dtype=cp.float32)
    weights = cp.unique(draws.random(30_000_000, dtype=cp.float32))
    places = cp.unique(cp.random.choice(1_000_000, 3_000_000))
    return step, neuron, times, weights, places


jobs.JOBS = {
    job.__name__: job
    for job in (
        rejection,
        box,
        random_graph,
        sparse_random,
        best_scores,
        labels,
        outliers,
        spikes,
    )
}

if __name__ == "__main__":
    import sys

    jobs.one(sys.argv[2]) if sys.argv[1] == "--job" else jobs.main(sys.argv[1], __file__)
