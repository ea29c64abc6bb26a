"""What TrainStep and watch cost a step: GPT-2 at batch 8, on a real GPU.

    python bench/gpu/library_overhead.py --out bench/gpu/results/h200_library_overhead.json

Four loops over the same batches take turns, a few steps each, so that clocks and heat are alike: the plain
loop, TrainStep at one micro-batch, the plain loop under watch, and both together. Each turn waits for the
GPU at its ends only, as training does. The result has the median of all turns of each loop, in
milliseconds a step, and the ratio to the plain loop of the same round, median and quartiles.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time

import torch
import transformers

import oomph


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10, help="steps a turn")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--bf16", action="store_true", help="under autocast: shorter steps, the harder case"
    )
    parser.add_argument("--small", action="store_true", help="two layers, for a try without a GPU")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("a GPU is needed (or `oomph run --gpu h200 …` for a try)")
    torch.manual_seed(0)
    shape = dict(n_layer=2, n_embd=64, n_head=2, vocab_size=512) if options.small else {}
    config = transformers.GPT2Config(**shape)
    model = transformers.GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(0, config.vocab_size, (options.batch, options.length), device="cuda")
    batch = {"input_ids": ids, "labels": ids}
    dtype = torch.bfloat16 if options.bf16 else None
    train = oomph.TrainStep(model, optimizer, autocast=dtype, micro_batch=options.batch)
    largest_parts = 0

    def plain():
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step():
        nonlocal largest_parts
        largest_parts = max(largest_parts, train(batch).micro_batches)

    def turn(function, watched):
        watch = oomph.watch(model, optimizer, every=100, snapshot=None) if watched else None
        if watch:
            watch.__enter__()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(options.steps):
            function()
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) / options.steps
        if watch:
            watch.__exit__(None, None, None)
        return took

    loops = {
        "plain": (plain, False), "train_step": (step, False), "plain_watched": (plain, True), "train_step_watched": (step, True),
    }  # fmt: skip
    for name, (function, watched) in loops.items():  # warm-up, kernels load here
        turn(function, watched)
    times = {name: [] for name in loops}
    for round_ in range(options.rounds):
        order = list(loops) if round_ % 2 == 0 else list(loops)[::-1]
        for name in order:
            times[name].append(turn(*loops[name]))
    result = dict(
        date=datetime.date.today().isoformat(), command=" ".join(sys.argv), machine=torch.cuda.get_device_name(),
        host=platform.processor() or platform.machine(), torch=torch.__version__, transformers=transformers.__version__, python=platform.python_version(),
        batch=options.batch, length=options.length, bf16=options.bf16, small=options.small, steps_a_turn=options.steps, rounds=options.rounds,
        micro_batches=largest_parts,
        ms_per_step={name: round(statistics.median(t) * 1e3, 4) for name, t in times.items()},
        ratio_to_plain={
            name: [round(q, 5) for q in statistics.quantiles([a / b for a, b in zip(t, times["plain"])], n=4)]
            for name, t in times.items() if name != "plain"
        },
        seconds={name: t for name, t in times.items()},
    )  # fmt: skip
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
    print(
        json.dumps(
            {k: result[k] for k in ("machine", "ms_per_step", "ratio_to_plain", "micro_batches")},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
