"""Speed and padding of MemoryBatchSampler, and the memory of its largest batch.

    python bench/library/sampler.py --out bench/library/results/sampler.json

Lengths are log-normal, like documents in tokens: median 180, at most 4,096. Plain batches have a fixed number
of samples; bucketed ones sort windows of 100 batches by length (the usual length-grouped sampler). For a
fair comparison all use as many batches.
"""

import argparse
import json
import platform
import time

import numpy as np

import oomph


def waste(lengths, batches):
    padded = real = largest = 0
    for batch in batches:
        own = lengths[batch]
        padded += int(own.max()) * len(own)
        real += int(own.sum())
        largest = max(largest, int(own.max()) * len(own))
    return dict(
        padding=round(1 - real / padded, 4), largest_batch_tokens=largest, batches=len(batches)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(5.2, 1.0, 10_000_000), 1, 4096).astype(np.uint32)
    times = {}
    for ranks in (1, 8):
        each = []
        for _ in range(3):
            began, cpu = time.perf_counter(), time.process_time()
            sampler = oomph.MemoryBatchSampler(lengths, 32_768, rank=0, ranks=ranks)
            count = len(sampler)
            next(iter(sampler))
            each.append(
                (round(time.perf_counter() - began, 3), round(time.process_time() - cpu, 3))
            )
        times[f"{ranks} ranks"] = dict(seconds_and_cpu_seconds=sorted(each), batches_a_rank=count)
    some = lengths[:200_000]
    memory = [np.array(b) for b in oomph.MemoryBatchSampler(some, 32_768)]
    size = -(-len(some) // len(memory))
    order = random.permutation(len(some))
    plain = [order[i : i + size] for i in range(0, len(some), size)]
    bucketed = []
    for i in range(0, len(some), size * 100):
        window = order[i : i + size * 100]
        window = window[np.argsort(some[window], kind="stable")]
        bucketed += [window[j : j + size] for j in range(0, len(window), size)]
    result = dict(
        machine=platform.processor() or platform.machine(), cores=len(__import__("os").sched_getaffinity(0)), python=platform.python_version(), load=__import__("os").getloadavg()[0],
        ten_million=times, samples=len(some),
        padding=dict(memory_batch_sampler=waste(some, memory), length_bucketed=waste(some, bucketed), plain=waste(some, plain)),
    )  # fmt: skip
    print(json.dumps(result, indent=1))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
