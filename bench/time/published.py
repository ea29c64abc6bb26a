"""Compares the clocks with times that others published of GPUs: `python bench/time/published.py NEUSIGHT AICONFIGURATOR`.

Both are clones (sitar-lab/NeuSight, ai-dynamo/aiconfigurator); the second needs pyarrow. Nothing is fitted to them. Each row is
one kernel; beside the clocks' error is that of a roofline with the same published figures: operations over the rate or bytes
over the bandwidth, the longer of the two. Build `cargo build --example price -p oomph-clock` before.
"""

import csv
import functools
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRICE = ROOT / "target" / "debug" / "examples" / "price"
OOMPH = [sys.executable, "-m", "oomph"]
# From one kernel to the next: the clocks count it.
GAP = 0.9e-6
# NeuSight records an event before and one after each operator while the GPU idles, so its times have what the host takes to launch
# it: an operator and a launch of `crates/oomph-clock/src/host.rs`, fitted to other machines.
LAUNCHED = 18.5e-6
NEUSIGHT = {
    "NVIDIA L4": "l4", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie", "Tesla V100-PCIE-32GB": "v100-32gb-pcie", "Tesla T4": "t4", "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100",
}  # fmt: skip
TESTED = ("l4", "h100-sxm", "a100-80gb-pcie")
TABLES = {
    "a100-80gb-sxm": "a100_sxm/gemm/vllm/0.14.0", "h100-sxm": "h100_sxm/gemm/vllm/0.19.0",
    "l40s": "l40s/gemm/vllm/0.14.0", "b200": "b200_sxm/gemm/vllm/0.19.0",
}  # fmt: skip
FP32, BF16 = 1, 4


def shown(clone, path):
    """A file of a clone's newest commit."""
    return subprocess.run(["git", "-C", clone, "show", f"HEAD:{path}"], capture_output=True).stdout


def neusight(clone):
    """Rows as (GPU, kind, seconds, line of a log, operations, bytes)."""
    for kind in ("bmm", "linear", "elem", "softmax", "ln"):
        text = shown(clone, f"scripts/asplos/data/dataset/test/{kind}.csv").decode()
        for row in csv.DictReader(io.StringIO(text)):
            if row["Device"] not in NEUSIGHT or not row["Latency"]:
                continue
            number = lambda *names: [int(float(row[name])) for name in names]
            gpu, seconds, name = (
                NEUSIGHT[row["Device"]],
                float(row["Latency"]) / 1e3,
                row["Kernel Name"],
            )
            if kind in ("bmm", "linear"):
                # `torch.bmm` of B×M×N and B×N×K, `nn.Linear(N, K)` of B×M×N: the sum is over N.
                b, m, k, n = number("B", "M", "N", "K")
                if kind == "linear":
                    b, m = 1, b * m
                moved = 4 * b * (m * k + k * n + m * n)
                line = ["product", n, m, k, b, FP32, 16]
                yield gpu, kind, seconds, line, 2 * b * m * n * k, moved
                continue
            arrays = re.search(r"Array<char\*, (\d+)", name)
            if kind == "elem" and not arrays:
                continue
            b, h, gx, gy, gz, bx, by, bz = number("B", "H", "Grid x", "Grid y", "Grid z", "Block x", "Block y", "Block z")  # fmt: skip
            moved = 4 * b * h * (int(arrays[1]) if kind == "elem" else 2)
            yield gpu, kind, seconds, ["kernel", name, gx * gy * gz, bx * by * bz, moved], 0, moved


def aiconfigurator(clone):
    """The same of its products in bf16."""
    import pyarrow.parquet

    for gpu, place in TABLES.items():
        data = shown(
            clone, f"aic-core/src/aiconfigurator_core/systems/data/{place}/gemm_perf.parquet"
        )
        if not data:
            print(f"{gpu}: no {place}")
            continue
        for row in pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist():
            m, n, k = row["m"], row["n"], row["k"]
            if row["gemm_dtype"] in ("bfloat16", "float16"):
                moved = 2 * (m * k + k * n + m * n)
                # Its graphs take six weights in turn with one input: they come from memory unless the cache holds all.
                weight = 2 * n * k
                cold = weight if 6 * weight > figures(gpu)["l2_bytes"] else 0
                yield (
                    gpu,
                    "bf16",
                    row["latency"] / 1e3,
                    ["product", n, m, k, 1, BF16, 16, cold],
                    2 * m * n * k,
                    moved,
                )


@functools.cache
def figures(gpu):
    """What the catalogue says of a GPU."""
    told = subprocess.run(
        [*OOMPH, "gpus", gpu, "--json", "-"], capture_output=True, text=True, check=True
    )
    return json.loads(told.stdout)["gpus"][0]


def attention(clone):
    """The same of its attention over whole prompts: causal, bf16. Another kernel writes keys and values into vLLM's cache before."""
    import pyarrow.parquet

    for gpu, place in TABLES.items():
        place = place.replace("gemm", "attention")
        data = shown(
            clone,
            f"aic-core/src/aiconfigurator_core/systems/data/{place}/context_attention_perf.parquet",
        )
        for row in pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist():
            batch, length, heads, keys, size = (
                row[name]
                for name in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
            )
            if row["kv_cache_dtype"] != "bfloat16" or row.get("window_size") or row["step"]:
                continue
            operations = 2 * batch * heads * length * length * size
            moved = 4 * batch * length * size * (heads + keys)
            yield (
                gpu,
                "attention",
                row["latency"] / 1e3,
                [
                    *("attention", batch * heads, length, length, size, 1, 2, BF16, moved),
                    8 * batch * length * keys * size,
                ],
                operations,
                moved,
            )


def priced(gpu, lines):
    """Seconds of each line, those of kernels that run beside it included."""
    names = sorted({line[1] for line in lines if line[0] == "kernel"})
    # Attention has last the bytes that another kernel moves.
    beside = [["moving", line[-1], "cache"] for line in lines if line[0] == "attention"]
    table = [
        [line[0], names.index(line[1]), *line[2:]] if line[0] == "kernel" else line
        for line in lines
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(dict(work=dict(names=names, table=table + beside, steps=[[1, [0]]])), file)
        file.flush()
        done = subprocess.run(
            [PRICE, "--lines", gpu, file.name], capture_output=True, text=True, check=True
        )
    us = json.loads(done.stdout)["us"]
    # Graphs were timed with the gaps. From compute capability 9.0 on, a product begins before the one before it ends
    # (`results/h200_graphs.jsonl`: 2.8 us each).
    overlaps = float(figures(gpu)["compute_capability"]) >= 9
    graphs = -GAP if overlaps else 0
    launched = graphs if len(lines[0]) > 7 else LAUNCHED - GAP
    more = us[len(lines) :] or [launched * 1e6] * len(lines)
    return [(one + other) / 1e6 for one, other in zip(us, more, strict=False)]


def line(title, rows):
    """One row of the table."""
    ours, roof = ([row[at] / row[2] - 1 for row in rows] for at in (-2, -1))
    off = lambda found: sorted(map(abs, found))
    print(
        f"{title:28} n {len(rows):6}  clocks: median {statistics.median(off(ours)):6.1%}, nine of ten below "
        f"{off(ours)[int(0.9 * len(rows))]:6.1%}, bias {statistics.median(ours):+6.1%}   roofline: median {statistics.median(off(roof)):6.1%}",
        flush=True,
    )


def main():
    """Compare."""
    for title, rows, kinds in (
        ("NeuSight", list(neusight(sys.argv[1])), ("bmm", "linear", "elem", "softmax", "ln")),
        (
            "AIConfigurator",
            list(aiconfigurator(sys.argv[2])) if len(sys.argv) > 2 else [],
            ("bf16",),
        ),
        ("Attention", list(attention(sys.argv[2])) if len(sys.argv) > 2 else [], ("attention",)),
    ):
        done = []
        for gpu in dict.fromkeys(row[0] for row in rows):
            own = [row for row in rows if row[0] == gpu]
            known = figures(gpu)
            rates = known["rates_per_s"]
            for row, seconds in zip(own, priced(gpu, [row[3] for row in own]), strict=True):
                rate = rates["fp32"] if row[1] not in ("bf16", "attention") else rates["bf16"]
                done.append(
                    (*row, seconds, max(row[4] / rate, row[5] / known["bandwidth_bytes_per_s"]))
                )
            for kind in kinds:
                found = [row for row in done if row[0] == gpu and row[1] == kind]
                if found:
                    line(f"{gpu} {kind}", found)
        tested = [row for row in done if title != "NeuSight" or row[0] in TESTED]
        if tested:
            line(f"{title}, all tested", tested)


if __name__ == "__main__":
    main()
