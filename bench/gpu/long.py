"""Jobs with long inputs (`bench/fit/long`) and a LoRA with `chunked_modules` and `int8_frozen`, on a real GPU: `python long.py OUT.jsonl [JOB ...]`.

Each job runs plain, with the MLPs in parts of rows, with the same MLPs checkpointed, with whole blocks checkpointed, and with both; each run is
a process of its own. A line has the time of each step, the allocator's peak, and how far the gradients of the first step are from
the plain run's (relative, in the L2 norm of all of them). `--virtual h100` runs it on the virtual GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = Path(os.environ.get("OOMPH_BENCH_JOBS", HERE.parent / "fit"))
MLPS = {
    "long/decoder_32k": [f"Decoder.layers.{i}.mlp" for i in range(8)],
    "long/audio_minutes": [f"Encoder.blocks.{i}.{part}" for i in range(6) for part in ("first", "second")],
    "long/experts_64k": [f"Table.layers.{i}.experts.{j}" for i in range(4) for j in range(4)],
    "long/vit_large_images": [f"ViT.blocks.{i}.mlp" for i in range(8)],
}  # fmt: skip
BLOCKS = {job: sorted({".".join(name.split(".")[:3]) for name in MLPS[job]}) for job in MLPS}
KINDS = ["plain", "chunked", "mlps", "blocks", "both", "int8"]


def levers(job: str, kind: str) -> list[dict] | None:
    """The plan, or that of a file; None if the kind is not for the job."""
    if kind.endswith(".toml"):
        return tomllib.loads(Path(kind).read_text())["lever"]
    if kind == "plain":
        return []
    if (kind == "int8") != (job not in MLPS):
        return None
    if kind == "int8":
        return [dict(name="int8_frozen")]
    chunked = dict(name="chunked_modules", modules=MLPS[job], chunks=16)
    blocks = dict(name="checkpoint", modules=BLOCKS[job])
    mlps = dict(name="checkpoint", modules=MLPS[job])
    return dict(chunked=[chunked], mlps=[mlps], blocks=[blocks], both=[chunked, blocks])[kind]


def child(job: str, kind: str, out: str) -> None:
    """One run in this process."""
    from oomph.levers import Levers, prepare

    prepare(levers(job, kind))
    import torch
    from torch.optim import optimizer as optimizers

    times, last, gradients = [], [0.0], []

    def before(optimizer, args, kwargs):
        if not gradients:
            found = (p.grad for group in optimizer.param_groups for p in group["params"])
            gradients.extend(g.detach().float().cpu() for g in found if g is not None)

    def after(optimizer, args, kwargs):
        torch.cuda.synchronize()
        now = time.perf_counter()
        if last[0]:
            times.append(now - last[0])
        last[0] = time.perf_counter()

    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    plan = Levers(levers(job, kind))
    plan.install()
    script = JOBS / f"{job}.py"
    error = None
    try:
        code = compile(script.read_text(), str(script), "exec")
        exec(code, {"__name__": "__main__", "__file__": str(script)})
    except BaseException as found:
        error = repr(found)[:300]
    plain = Path(out).with_suffix(f".{job.replace('/', '.')}.pt")
    distance = None
    if kind == "plain":
        torch.save(gradients, plain)
    elif plain.exists() and gradients:
        theirs = torch.load(plain)
        norm = sum(g.double().square().sum() for g in theirs).sqrt()
        apart = sum((a - b).double().square().sum() for a, b in zip(gradients, theirs)).sqrt()
        distance = float(apart / norm)
    row = dict(
        job=job, kind=kind, error=error, step_s=times, allocated_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.max_memory_reserved(), gradients=distance, levers=plan.report(),
        gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
    )  # fmt: skip
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")
    times = [round(1e3 * t, 1) for t in times]
    print(job, kind, times, row["allocated_bytes"] >> 20, distance, error, flush=True)


def main() -> None:
    """All kinds of each job, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", nargs="*", default=[*MLPS, "frozen/lora_decoder"])
    parser.add_argument("--virtual")
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    for job in args.jobs:
        for kind in args.kinds.split(","):
            if levers(job, kind) is None:
                continue
            command = [sys.executable]
            if args.virtual:
                oomph = str(Path(sys.executable).parent / "oomph")
                command = [oomph, "run", "-q", "--gpu", args.virtual]
            out = str(args.out.absolute())
            subprocess.run([*command, __file__, "--child", job, kind, out], check=False)
        args.out.with_suffix(f".{job.replace('/', '.')}.pt").unlink(missing_ok=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
    else:
        main()
