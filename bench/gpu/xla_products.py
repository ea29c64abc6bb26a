"""What XLA's autotuner tries and chooses for matrix products: `python bench/gpu/xla_products.py OUT.json [SECONDS] [JOB…]`.

Each product is compiled alone. For each instruction that XLA tunes there: every candidate's back end, nanoseconds, bytes of work
space, and tile or algorithm; and what XLA chose. With JOBs of `bench/jax/jobs.py` those are run instead, each in this process.
Nothing is begun after SECONDS.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLACE = tempfile.mkdtemp()
LOGS, RESULTS = f"{PLACE}/logs.txt", f"{PLACE}/results.txt"

# dtype of inputs, m, k, n, batch, what is around it.
PRODUCTS = [
    (dtype, m, k, n, batch, around)
    for m, k, n, batch in (
        (4096, 4096, 4096, 1), (2048, 1024, 512, 1), (8192, 1024, 4096, 1), (256, 2048, 1024, 1), (512, 64, 512, 64), (16384, 1024, 3072, 1),
        (1024, 8192, 1024, 1), (2048, 256, 1024, 1), (8192, 8192, 2048, 1), (32, 2048, 6144, 1), (4096, 512, 512, 1), (6000, 768, 3072, 1),
    )
    for dtype, around in (("bfloat16", ""), ("float32", ""), ("float32", "converted"))
] + [
    ("bfloat16", 8192, 1024, 32000, 1, ""), ("bfloat16", 1024, 8192, 4096, 1, "transposed"), ("float32", 1024, 8192, 4096, 1, "transposed"),
    ("float16", 4096, 4096, 4096, 1, ""), ("float32", 128, 128, 128, 1, ""), ("bfloat16", 1, 4096, 4096, 1, ""), ("float32", 2048, 1024, 256, 1, "tanh"),
    ("bfloat16", 1000, 1000, 1000, 1, ""), ("float32", 16384, 64, 16384, 1, ""), ("bfloat16", 1024, 128, 1024, 128, ""),
]  # fmt: skip


def dumping(logs, results):
    """The environment in which XLA writes what it tunes to two files."""
    flags = f" --xla_gpu_dump_autotune_logs_to={logs} --xla_gpu_dump_autotune_results_to={results}"
    return {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}  # fmt: skip


def blocks(text, name):
    """The bodies of the fields called `name`, at any depth, in a text of protocol buffers."""
    for found in re.finditer(rf"\b{name} \{{", text):
        depth, at = 1, found.end()
        while depth:
            at += 1
            depth += {"{": 1, "}": -1}.get(text[at - 1], 0)
        yield text[found.end() : at - 1]


def word(text, name):
    """The value of the first field called `name`, or None."""
    found = re.search(rf"\b{name}: \"?([^\s\"]+)", text)
    return found and found[1]


def tuned(logs=LOGS, results=RESULTS):
    """What was tuned, and what was chosen, by the two files that XLA wrote."""
    read = lambda path: open(path).read() if os.path.exists(path) else ""  # noqa: E731
    logs, results = read(logs), read(results)
    chosen = {}
    for entry in blocks(results, "entries"):
        config = next(blocks(entry, "optimal_config"), "")
        chosen[word(entry, "hlo_fingerprint")] = [word(config, "backend"), config_of(config)]
    found = []
    for profile in blocks(logs, "instruction_profiles"):
        candidates = []
        for one in blocks(profile, "config_profiles"):
            run = next(blocks(one, "run_time"), "")
            nanos = int(word(run, "nanos") or 0) + 1_000_000_000 * int(word(run, "seconds") or 0)
            failure = next(blocks(one, "failure"), None)
            size = int(word(one, "scratch_bytes") or 0)
            candidates.append(
                [
                    word(one, "backend"),
                    nanos,
                    size,
                    config_of(one),
                    failure and failure.strip()[:80],
                ]
            )
        key = word(profile, "hlo_fingerprint")
        found.append({"fingerprint": key, "chosen": chosen.get(key), "candidates": candidates})
    return found


def config_of(text):
    """Tile, algorithm or cuDNN's engine of a candidate with its knobs and work space, in short."""
    names = (
        "block_m",
        "block_n",
        "block_k",
        "split_k",
        "num_stages",
        "num_warps",
        "num_ctas",
        "algorithm",
        "algo_id",
    )
    said = [f"{name}={value}" for name in names if (value := word(text, name))]
    said += [f"{word(k, 'key')}:{word(k, 'value')}" for k in blocks(text, "tuning_knobs")]
    said += [f"work={word(w, 'value') or 0}" for w in blocks(text, "workspace_size")]
    return " ".join(said)


def compiled(dtype, m, k, n, batch, around):
    """Compiles the product; bytes of the program's temporary memory."""
    import jax
    import jax.numpy as jnp

    shape = lambda *sizes: jax.ShapeDtypeStruct(((batch,) if batch > 1 else ()) + sizes, dtype)  # noqa: E731

    def product(a, b):
        if around == "converted":
            a, b = a.astype("bfloat16"), b.astype("bfloat16")
        c = (jnp.swapaxes(a, -1, -2) if around == "transposed" else a) @ b
        return jnp.tanh(c + 1) if around == "tanh" else c

    a = shape(k, m) if around == "transposed" else shape(m, k)
    return jax.jit(product).lower(a, shape(k, n)).compile().memory_analysis().temp_size_in_bytes


def ran(job):
    """Runs a job of `bench/jax`; its peak in bytes, since the process began."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "jax"), "."]
    import jax
    import jobs

    jax.block_until_ready(jobs.JOBS[job]())
    return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]


def main():
    """All products or jobs, one after another."""
    out, seconds, names = sys.argv[1], float((sys.argv[2:] or ["100"])[0]), sys.argv[3:]
    os.environ |= dumping(LOGS, RESULTS)
    began = time.monotonic()
    import jax

    device = jax.local_devices()[0]
    driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    about = {
        "gpu": device.device_kind, "driver": subprocess.run(driver, capture_output=True, text=True).stdout.strip(),
        "jax": jax.__version__, "version": device.client.platform_version, "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "bench/gpu/xla_products.py", *sys.argv[1:]]),
    }  # fmt: skip
    rows = []
    for it in names or PRODUCTS:
        start = time.monotonic()
        if start - began > seconds:
            break
        for path in (LOGS, RESULTS):
            Path(path).unlink(missing_ok=True)
        try:
            row = {"job": it, "peak": ran(it)} if names else {"product": it, "temporary": compiled(*it)}  # fmt: skip
            row["tuned"] = tuned()
        except Exception as e:
            row = {"of": it, "failed": str(e)[:300]}
        rows.append(row | {"seconds": round(time.monotonic() - start, 1)})
        Path(out).write_text(json.dumps({"about": about, "products": rows}))
        print(it, rows[-1]["seconds"], flush=True)


if __name__ == "__main__":
    main()
