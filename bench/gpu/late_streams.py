"""Prefetching on a side stream with record_stream: how much is reserved, by how late the compute stream is.

    python late_streams.py OUT.jsonl

The compute stream is held up by a fixed number of GPU cycles a step; the host goes on at once, or waits for the loss
every n steps. A block that record_stream marked comes back only when the host sees that the other stream has passed
its event, which it looks for when it allocates. One line a step; one run of each setting, each with an empty cache.
"""

import json
import sys
import time

import torch

cuda = torch.cuda
MIB = 1 << 20
STEPS = 16


def run(file, cycles, wait_every, size, host_seconds, mark, fresh):
    """One setting. `mark`: record_stream is called; `fresh`: the batch is normalized into a new block as well."""
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    setting = dict(
        cycles=cycles,
        wait_every=wait_every,
        size=size,
        host_seconds=host_seconds,
        mark=mark,
        fresh=fresh,
    )
    compute, copy = cuda.current_stream(), cuda.Stream()
    host = torch.zeros(size, dtype=torch.uint8).pin_memory()
    weight = torch.randn(1024, 1024, device="cuda")
    before = cuda.memory_reserved()

    def load():
        with cuda.stream(copy):
            batch = host.to("cuda", non_blocking=True)
            return batch.float() if fresh else batch

    rows, after, passed = [], load(), []
    began = time.perf_counter()
    for step in range(STEPS):
        compute.wait_stream(copy)
        now = after
        if mark:
            now.record_stream(compute)
        after = load()
        out = now[: 1024 * 1024].float().view(1024, 1024) @ weight
        cuda._sleep(cycles)
        loss = out.sum() + now[0]
        done = cuda.Event()
        done.record()
        passed.append(done)
        del out, now
        if host_seconds:
            time.sleep(host_seconds)
        if wait_every and (step + 1) % wait_every == 0:
            loss.item()
        rows.append(
            dict(
                step=step,
                allocated=cuda.memory_allocated(),
                reserved=cuda.memory_reserved() - before,
                active=cuda.memory_stats()["active_bytes.all.current"],
                behind=sum(not e.query() for e in passed),
                at=round(time.perf_counter() - began, 5),
            )
        )
    cuda.synchronize()
    line = dict(setting, seconds=time.perf_counter() - began, steps=rows)
    line["max_reserved"] = cuda.max_memory_reserved() - before
    line["segments"] = [s["total_size"] for s in cuda.memory_snapshot()]
    file.write(json.dumps(line) + "\n")
    file.flush()


def main():
    end = time.monotonic() + 40
    with open(sys.argv[1], "w") as file:
        cuda.init()
        torch.randn(1024, 1024, device="cuda") @ torch.randn(1024, 1024, device="cuda")
        start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        cuda._sleep(50_000_000)
        stop.record()
        cuda.synchronize()
        per_second = 50_000_000 / (start.elapsed_time(stop) / 1000)
        file.write(json.dumps(dict(cycles_per_second=per_second, torch=torch.__version__)) + "\n")
        for mark in (True, False):
            for fresh in (False, True):
                for size in (9 * MIB, 64 * MIB):
                    for ms in (0, 2, 10, 40):
                        for wait_every, host in ((0, 0), (0, 0.005), (1, 0), (4, 0)):
                            if time.monotonic() < end:
                                cycles = int(ms * per_second / 1000)
                                run(file, cycles, wait_every, size, host, mark, fresh)


if __name__ == "__main__":
    main()
