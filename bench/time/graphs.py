"""What products in bf16 take within CUDA graphs: `python bench/time/graphs.py OUT.jsonl`.

Each graph has six products of one input with weights that take turns, so weights come from memory where the cache does not hold
all; `us` is the time of one of them, gaps between kernels included: that is how tables of serving times are measured.
"""

import json
import statistics
import sys

import torch

WEIGHTS, ROUNDS = 6, 7
SIZES = [(128, 512), (512, 128), (512, 2048), (1024, 1024), (2048, 512), (2048, 2048), (4096, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (16384, 16384), (65536, 4096)]  # fmt: skip


def measured(m, n, k):
    """Microseconds of one product."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(WEIGHTS)]
    run = lambda: [torch.nn.functional.linear(x, w) for w in weights]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(4):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 4 / WEIGHTS)
    return statistics.median(times)


def main():
    """Measure."""
    with open(sys.argv[1], "w") as file, torch.no_grad():
        for n, k in SIZES:
            for m in (1, 8, 16, 48, 64, 128, 256, 512, 1024, 4096):
                if m * n * k > 2e12:
                    continue
                row = dict(m=m, n=n, k=k, us=round(measured(m, n, k), 3), gpu=torch.cuda.get_device_name(0))  # fmt: skip
                file.write(json.dumps(row) + "\n")
                file.flush()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
