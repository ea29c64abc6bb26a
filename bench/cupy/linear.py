"""Eight more CuPy jobs, for the libraries' workspaces: `python bench/cupy/linear.py OUT.jsonl`."""

import jobs


def tall_svd():
    import cupy as cp

    return cp.linalg.svd(cp.ones((5000, 700)), full_matrices=False)


def wide_svd():
    import cupy as cp

    return cp.linalg.svd(cp.ones((900, 6000), dtype=cp.float32), full_matrices=False)


def eigenvalues():
    import cupy as cp

    a = cp.eye(2500, dtype=cp.float32)
    return cp.linalg.eigh(a), cp.linalg.eigvalsh(cp.eye(1500))


def least_squares():
    import cupy as cp

    a = cp.random.rand(6000, 800)
    return cp.linalg.qr(a), cp.linalg.lstsq(a, cp.ones((6000, 3)), rcond=None)


def inverses():
    import cupy as cp

    a = cp.eye(3500) * 3
    return (
        cp.linalg.inv(a),
        cp.linalg.slogdet(a),
        cp.linalg.solve(a.astype(cp.complex64), cp.ones((3500, 8), dtype=cp.complex64)),
    )


def long_spectra():
    import cupy as cp

    x = cp.zeros((9, 1_000_003))
    return cp.fft.irfft(cp.fft.rfft(x, axis=1), n=1_000_003, axis=1), cp.fft.fft(
        cp.zeros((5, 300_007), dtype=cp.complex64)
    )


def prime_planes():
    import cupy as cp

    x = cp.zeros((40, 1009, 757), dtype=cp.complex64)
    return cp.fft.ifft2(cp.fft.fft2(x)), cp.fft.rfft2(cp.zeros((10, 1201, 1301), dtype=cp.float32))


def statistics():
    import cupy as cp

    x = cp.random.standard_normal(30_000_000, dtype=cp.float32)
    return (
        cp.percentile(x, [5, 50, 95]),
        cp.histogram(x, bins=200),
        x.reshape(3000, -1).std(axis=1),
        cp.cumsum(x),
    )


jobs.JOBS = {
    job.__name__: job
    for job in (
        tall_svd,
        wide_svd,
        eigenvalues,
        least_squares,
        inverses,
        long_spectra,
        prime_planes,
        statistics,
    )
}

if __name__ == "__main__":
    import sys

    jobs.one(sys.argv[2]) if sys.argv[1] == "--job" else jobs.main(sys.argv[1], __file__)
