"""Eight more CuPy jobs, of other kinds than `jobs.py`: `python bench/cupy/fresh.py OUT.jsonl`."""

import jobs


def batched_products():
    import cupy as cp

    a, b = cp.zeros((64, 1024, 1024), dtype=cp.float16), cp.zeros((64, 1024, 512), dtype=cp.float16)
    return cp.matmul(a, b), cp.einsum("bij,bjk->bik", a[:8], b[:8])


def linear_systems():
    import cupy as cp

    a = cp.eye(4096) * 2
    return cp.linalg.solve(a, cp.ones((4096, 256))), cp.linalg.cholesky(a)


def singular_values():
    import cupy as cp

    return cp.linalg.svd(cp.ones((3000, 1000), dtype=cp.float32), full_matrices=False)


def heat_equation():
    import cupy as cp

    step = cp.ElementwiseKernel(
        "raw T u, int32 n", "T v", "v = i > n && i < n * (n - 1) ? u[i] + 0.1 * (u[i - n] + u[i + n] - 2 * u[i]) : u[i]", "step"
    )  # fmt: skip
    u = cp.zeros((8192, 8192))
    for _ in range(20):
        u = step(u, 8192, size=u.size).reshape(u.shape)
    return u


def odd_transforms():
    import cupy as cp

    x = cp.zeros((200, 100_003), dtype=cp.float32)
    return cp.fft.irfft(cp.fft.rfft(x, axis=1), axis=1)


def clusters():
    import cupy as cp

    points = cp.random.standard_normal((500_000, 32), dtype=cp.float32)
    centres = points[:64]
    for _ in range(3):
        distances = ((points[:, None, :8] - centres[None, :, :8]) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        centres = cp.stack([(points * (nearest == k)[:, None]).mean(axis=0) for k in range(64)])
    return centres


def filtered_images():
    import cupy as cp
    from cupyx.scipy import ndimage

    images = cp.zeros((16, 2048, 2048), dtype=cp.float32)
    return ndimage.gaussian_filter(images, sigma=(0, 3, 3)), ndimage.sobel(images)


def driver_pool():
    import cupy as cp

    cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)
    kept = [cp.zeros(n << 20, dtype=cp.float32) for n in (100, 30, 260, 7)]
    del kept[1:3]
    return kept, cp.zeros(64 << 20, dtype=cp.float32)


jobs.JOBS = {
    job.__name__: job
    for job in (
        batched_products,
        linear_systems,
        singular_values,
        heat_equation,
        odd_transforms,
        clusters,
        filtered_images,
        driver_pool,
    )
}

if __name__ == "__main__":
    import sys

    jobs.one(sys.argv[2]) if sys.argv[1] == "--job" else jobs.main(sys.argv[1], __file__)
