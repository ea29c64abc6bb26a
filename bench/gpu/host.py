"""What the host takes for a step: `python bench/gpu/host.py OUT.jsonl [--job gpt2 …] [--virtual h200]`.

The jobs of `bench/fit` on so few values that the GPU waits for the host all the time, plain and under
levers. Each variant is a process of its own; all start at once, and step one after the other. `step_s` is
the wall time of each step between synchronisations. With `--virtual` the same on a virtual GPU under
`oomph run`, whose record counts launches, to compare.
"""

import argparse
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "fit" / "jobs"
CHILD = "OOMPH_BENCH_CHILD"

GPT2 = [f"GPT2LMHeadModel.transformer.h.{i}" for i in range(12)]
BERT = [f"BertForSequenceClassification.bert.encoder.layer.{i}" for i in range(12)]
LLAMA = [f"LlamaForCausalLM.model.layers.{i}" for i in range(22)]
VIT = [f"VisionTransformer.encoder.layers.encoder_layer_{i}" for i in range(12)]
RESNET = [
    f"ResNet.layer{n}.{i}" for n, count in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True) for i in range(count)
]  # fmt: skip


def inside(blocks: list[str], *parts: str) -> list[str]:
    """Those parts of all blocks."""
    return [f"{block}.{part}" for block in blocks for part in parts]


SMALL = {
    "gpt2": (["--batch-size", "8", "--length", "32"], GPT2, inside(GPT2, "mlp")),
    "bert_base": (["--batch-size", "8", "--length", "32"], BERT, inside(BERT, "attention")),
    "llama1b": (["--batch-size", "4", "--length", "32"], LLAMA, inside(LLAMA, "mlp")),
    "vit_b_16": (["--batch-size", "4"], VIT, inside(VIT, "mlp")),
    "resnet50": (["--batch-size", "4"], RESNET, RESNET[:7]),
}
"""Arguments that leave the GPU little to do, the blocks, and some of their parts."""


def variants(job: str) -> dict[str, list[dict]]:
    """Levers by the name of the variant."""
    _, blocks, parts = SMALL[job]
    found = {
        "plain": [],
        "micro-batches": [dict(name="micro_batch", parts=4)],
        "blocks": [dict(name="checkpoint", modules=blocks)],
        "parts": [dict(name="checkpoint", modules=parts)],
        "blocks, micro-batches": [
            dict(name="checkpoint", modules=blocks),
            dict(name="micro_batch", parts=4),
        ],
        "expandable": [dict(name="allocator", conf="expandable_segments:True")],
        "fused": [dict(name="optimizer_step", kind="fused")],
        "single tensor": [dict(name="optimizer_step", kind="single_tensor")],
    }
    if job == "resnet50":
        del found["micro-batches"], found["blocks, micro-batches"]
    if job in ("resnet50", "vit_b_16"):
        found["bf16"] = [dict(name="mixed_precision", dtype="bf16")]
    if job in ("gpt2", "llama1b"):
        found["chunked"] = [dict(name="chunked_cross_entropy", chunks=8)]
    return found


def child(settings: dict) -> None:
    """One variant in this process."""
    from oomph.levers import Levers, prepare

    prepare(settings["levers"])
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    times: list[float] = []
    cpu: list[float] = []
    last: list[tuple[float, float]] = []
    turn = open(settings["lock"], "w")  # noqa: SIM115 (held until the process ends)

    def stepped(optimizer, args, kwargs):
        torch.cuda.synchronize()
        if not last:
            fcntl.flock(turn, fcntl.LOCK_EX)
        now = time.perf_counter(), time.process_time()
        if last:
            times.append(now[0] - last[-1][0])
            cpu.append(now[1] - last[-1][1])
        last.append(now)

    register_optimizer_step_post_hook(stepped)
    levers = Levers(settings["levers"])
    if settings["levers"]:
        levers.install()
    script = settings["script"]
    sys.argv = [script, *settings["arguments"]]
    sys.path.insert(0, os.path.dirname(script))
    exec(
        compile(Path(script).read_text(), script, "exec"),
        {"__name__": "__main__", "__file__": script},
    )
    result = dict(
        step_s=times,
        cpu_s=cpu,
        gpu=torch.cuda.get_device_name(0),
        torch=torch.__version__,
        python=platform.python_version(),
        levers=levers.report(),
    )
    Path(settings["out"]).write_text(json.dumps(result))


def run(job: str, name: str, place: str, virtual: str | None, steps: int) -> dict:
    """One process; what it measured."""
    out = os.path.join(place, f"{job}-{name}.json")
    arguments, _, _ = SMALL[job]
    settings = dict(
        script=str(JOBS / f"{job}.py"),
        arguments=[*arguments, "--steps", str(steps)],
        levers=variants(job)[name],
        out=out,
        lock=os.path.join(place, "turn"),
    )
    environment = dict(os.environ, **{CHILD: json.dumps(settings)})
    command = [sys.executable, str(Path(__file__).resolve())]
    summary = os.path.join(place, f"{job}-{name}-run.json")
    if virtual:
        oomph = str(Path(sys.executable).parent / "oomph")
        record = os.path.join(place, f"{job}-{name}")
        command = [
            oomph,
            "run",
            "-q",
            "--out",
            record,
            "--json",
            summary,
            "--gpu",
            virtual,
            command[1],
        ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    row = dict(job=job, variant=name, levers=[lever["name"] for lever in settings["levers"]])
    if not os.path.exists(out):
        return dict(row, error=(done.stderr or done.stdout)[-500:])
    return dict(row, **json.loads(Path(out).read_text()))


def main() -> None:
    """Measure all variants."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--job", nargs="*", choices=list(SMALL), default=list(SMALL))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=6, help="processes that start at once")
    parser.add_argument("--virtual", help="run on the virtual GPU of this name instead")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(args.at_once) as pool:
        tasks = [
            pool.submit(run, job, name, place, args.virtual, args.steps)
            for job in args.job
            for name in variants(job)
        ]
        with args.out.open("w") as file:
            for task in tasks:
                row = task.result()
                file.write(json.dumps(row) + "\n")
                file.flush()
                if "error" in row:
                    print(f"{row['job']:10} {row['variant']:22} {row['error']}", flush=True)
                    continue
                step = statistics.median(row["step_s"][2:])
                print(f"{row['job']:10} {row['variant']:22} {step * 1e3:7.2f} ms", flush=True)


if __name__ == "__main__":
    if CHILD in os.environ:
        child(json.loads(os.environ.pop(CHILD)))
    else:
        main()
