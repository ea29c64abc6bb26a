"""Jobs of `bench/fit/frozen` with their frozen weights in host memory, on a real GPU: `python frozen.py OUT.jsonl [JOB ...]`.

Each job runs plain, with every block checkpointed, with `stream_frozen`, and with both; each run is a process of its own. A line has
the time of each step, the allocator's peak, and a digest of the trained weights at the end: with deterministic kernels it is the plain
run's. `--virtual h200` runs it on the virtual GPU, where steps have no time worth a word.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = Path(os.environ.get("OOMPH_BENCH_JOBS", HERE.parent / "fit" / "frozen"))
BLOCKS = {
    "lora_decoder": [f"Decoder.blocks.{i}" for i in range(16)],
    "teacher_features": [f"Teacher.layers.{i}" for i in range(20)],
    "visual_prompts": [f"Prompted.layers.{i}" for i in range(18)],
    "perceptual_loss": [f"Perceptual.features.{i}" for i in range(4)],
}
KINDS = {
    "plain": [],
    "stream_frozen": ["stream_frozen"],
    "checkpoint": ["checkpoint"],
    "both": ["checkpoint", "stream_frozen"],
}


def child(job: str, kind: str, out: str) -> None:
    """One run in this process."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    from oomph.levers import Levers

    torch.use_deterministic_algorithms(True, warn_only=True)
    times, last, trained = [], [0.0], []

    def stepped(optimizer, args, kwargs):
        torch.cuda.synchronize()
        now = time.perf_counter()
        if last[0]:
            times.append(now - last[0])
        last[0] = time.perf_counter()
        trained[:] = [p for group in optimizer.param_groups for p in group["params"]]

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(stepped)
    levers = Levers([dict(name=name, modules=BLOCKS[job]) for name in KINDS[kind]])
    levers.install()
    script = JOBS / f"{job}.py"
    code = (
        script.read_text()
        .replace("range(4)", "range(10)")
        .replace("torch.rand(64, 3", "torch.rand(160, 3")
    )
    code = code.replace("randint(200, (64,))", "randint(200, (160,))")
    error = None
    try:
        exec(compile(code, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    except BaseException as found:
        error = repr(found)[:300]
    digest = hashlib.sha256()
    for p in trained:
        digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    row = dict(
        job=job, kind=kind, error=error, step_s=times, allocated_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.max_memory_reserved(), digest=digest.hexdigest()[:16], levers=levers.report(),
        gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
    )  # fmt: skip
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(
        job,
        kind,
        [round(1e3 * t, 1) for t in times],
        row["allocated_bytes"] >> 20,
        row["digest"],
        error,
        flush=True,
    )


def main() -> None:
    """All kinds of each job, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", nargs="*", default=list(BLOCKS))
    parser.add_argument("--virtual")
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    for job in args.jobs:
        for kind in args.kinds.split(","):
            command = [sys.executable]
            if args.virtual:
                command = [
                    str(Path(sys.executable).parent / "oomph"),
                    "run",
                    "-q",
                    "--gpu",
                    args.virtual,
                ]
            subprocess.run([*command, __file__, "--child", job, kind, str(args.out)], check=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
    else:
        main()
