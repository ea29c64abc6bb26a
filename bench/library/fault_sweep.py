"""An out-of-memory error at every allocation of a training step, in turn: does training go on, exactly?

    python bench/library/fault_sweep.py --out bench/library/results/faults_cpu.jsonl
    oomph run --gpu h200 --quiet bench/library/fault_sweep.py --device cuda --out FILE

Each case trains for a few steps with `oomph.TrainStep`; in one step the n-th allocation fails. Then a
loop written by hand, without oomph and without faults, makes the same steps in as many parts as
TrainStep made of them. Parameters, buffers, optimizer state and random state must be equal bit for bit.
On the CPU a dispatch mode fails the n-th operator that allocates; on the virtual GPU the n-th
request to the driver fails, with the allocator's cache off (each tensor is a request, and the error is
the driver's) or on (requests are segments, and the error is the allocator's).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import os
import sys
import time
import warnings

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import faults
from models import MODELS, WEIGHTS

import oomph

STEPS = 4
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def weight(name):
    return (
        (lambda b: float((b["labels"] != -100).sum())) if WEIGHTS[name] == "labels" else "samples"
    )


def build(case, device):
    torch.manual_seed(7)
    model, batch, loss = MODELS[case["model"]](device)
    optimizer = OPTIMIZERS[case["optimizer"]](model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=256.0) if case["scaler"] else None
    return model, optimizer, scaler, [batch(s) for s in range(STEPS)], loss


def everything(model, optimizer, scaler, device):
    """All state that training leaves, as bytes on the CPU."""
    state = [t.detach() for t in model.state_dict().values()]
    for p in model.parameters():
        state += [v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    state.append(torch.get_rng_state())
    if device == "cuda":
        state.append(torch.cuda.get_rng_state())
    if scaler is not None:
        state.append(torch.tensor(scaler.get_scale()))
    return [t.cpu().contiguous().view(-1).view(torch.uint8) for t in state]


def by_hand(case, device, parts):
    """The same steps in a plain loop, step i in `parts[i]` parts."""
    model, optimizer, scaler, batches, loss_fn = build(case, device)
    count = weight(case["model"])
    for batch, k in zip(batches, parts):
        size = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch[0])
        edges = [size // k * i + min(i, size % k) for i in range(k + 1)]
        pieces = [
            {n: t[a:b] for n, t in batch.items()}
            if isinstance(batch, dict)
            else tuple(t[a:b] for t in batch)
            for a, b in zip(edges, edges[1:])
        ]
        weights = [
            float(b - a) if count == "samples" else count(p)
            for p, a, b in zip(pieces, edges, edges[1:])
        ]
        optimizer.zero_grad()
        for piece, w in zip(pieces, weights):
            piece = (
                {n: t.to(device) for n, t in piece.items()}
                if isinstance(piece, dict)
                else tuple(t.to(device) for t in piece)
            )
            loss = loss_fn(model, piece)
            if k > 1:
                loss = loss * (w / sum(weights))
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        if case["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return everything(model, optimizer, scaler, device)


def with_fault(case, device, step, arm, disarm, protect):
    """Train with TrainStep; `arm()` lets a fault wait in the step numbered `step`."""
    model, optimizer, scaler, batches, loss_fn = build(case, device)
    if case.get("checkpointed"):
        oomph.CheckpointBlocks().apply(model)
    train = oomph.TrainStep(
        model, optimizer, loss_fn, weight=weight(case["model"]), max_norm=case["clip"], scaler=scaler,
        protect=protect, micro_batch=None if device == "cpu" else case.get("micro_batch", 6), grow_after=0,
    )  # fmt: skip
    parts, errors = [], []
    for index, batch in enumerate(batches):
        if index == step:
            arm()
        try:
            report = train(batch)
        finally:
            if index == step:
                disarm()
        parts.append(report.micro_batches)
        errors += report.errors
    return parts, errors, everything(model, optimizer, scaler, device)


class OnCpu:
    """Positions are operators that allocate."""

    def __init__(self):
        self.mode = None

    def count(self, run):
        self.mode = faults.Faults()
        run(lambda: self.mode.__enter__(), lambda: self.mode.__exit__(None, None, None))
        return self.mode.count

    def fail(self, run, positions):
        self.mode = faults.Faults(positions)
        result = run(lambda: self.mode.__enter__(), lambda: self.mode.__exit__(None, None, None))
        return result, bool(self.mode.raised), (self.mode.raised or [""])[0]


class OnVirtualGpu:
    """Positions are requests to the driver."""

    def __init__(self, times):
        self.times = times

    def count(self, run):
        seen = []

        def arm():
            torch.cuda.empty_cache()
            seen.append(faults.cuda_requests())

        run(arm, lambda: seen.append(faults.cuda_requests()))
        return seen[1] - seen[0]

    def fail(self, run, positions):
        def arm():
            torch.cuda.empty_cache()
            faults.fail_cuda(min(positions), self.times)

        result = run(arm, lambda: faults.fail_cuda(0, 0))
        return result, True, ""


def sweep(case, device, protect, machine, every, out):
    """One model, optimizer and step: a fault at each position."""
    references = {}
    tally = collections.Counter()

    def run(arm, disarm):
        return with_fault(case, device, case["step"], arm, disarm, protect)

    total = machine.count(run)
    for position in range(1, total + 1, every):
        record = dict(case, device=device, protect=protect, position=position, of=total)
        try:
            (parts, errors, state), raised, where = machine.fail(run, [position])
            key = tuple(parts)
            if key not in references:
                references[key] = by_hand(case, device, parts)
            same = len(state) == len(references[key]) and all(
                map(torch.equal, state, references[key])
            )
            outcome = "equal" if same else "DIFFERENT"
            record.update(parts=parts, survived=len(errors), operator=where)
        except (oomph.CannotFit, oomph.StateLost, oomph.Refused) as error:
            outcome = f"stopped: {type(error).__name__}"
            record["message"] = str(error)[:200]
        except Exception as error:
            outcome = f"FAILED: {type(error).__name__}"
            record["message"] = str(error)[:300]
        record["outcome"] = outcome
        tally[outcome] += 1
        out.write(json.dumps(record) + "\n")
    return total, tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", default=os.devnull)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--every", type=int, default=1, help="take every N-th position only")
    parser.add_argument(
        "--steps", nargs="*", type=int, default=[0, 2], help="in which step the fault comes"
    )
    parser.add_argument(
        "--times", type=int, default=1, help="virtual GPU: how many requests in a row fail"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("oomph").setLevel(logging.ERROR)
    torch.use_deterministic_algorithms(True, warn_only=True)
    began = time.time()
    bad = 0
    machine = OnCpu() if options.device == "cpu" else OnVirtualGpu(options.times)
    protect = "always" if options.device == "cpu" else "auto"
    with (
        open(options.out, "a")
        if options.out != os.devnull
        else contextlib.nullcontext(open(os.devnull, "w")) as out
    ):
        for model in options.models:
            for optimizer, clip, scaler in (
                ("adamw", None, False),
                ("adamw_foreach", 0.5, False),
                ("sgd_momentum", 0.5, True),
            ):
                for step in options.steps:
                    case = dict(
                        model=model, optimizer=optimizer, clip=clip, scaler=scaler, step=step
                    )
                    total, tally = sweep(case, options.device, protect, machine, options.every, out)
                    bad += sum(
                        n
                        for what, n in tally.items()
                        if what.isupper() or what.startswith(("DIFF", "FAIL"))
                    )
                    print(
                        f"{model:12} {optimizer:14} clip {clip!s:5} scaler {scaler!s:5} step {step}: {total:5} allocations, {dict(tally)}",
                        flush=True,
                    )
    print(f"{time.time() - began:.0f} s, torch {torch.__version__}; differing or failed: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
