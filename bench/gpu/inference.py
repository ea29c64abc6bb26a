"""Jobs that infer, on a real GPU: `python bench/gpu/inference.py OUT.json [--only peaks,stream,drift]`.

peaks: each job of bench/inference/jobs plain and with three plans, on the virtual GPU of the same name
and on the real one; PyTorch's own peaks are compared, which other processes on the GPU do not change.
stream: a model of twice the capped memory with streamed weights, its time against that of the bytes
over the link. drift: `oomph drift` of five models. Each run is a process of its own with a time limit.
`--virtual` leaves the real GPU out: peaks are predicted only, and drift is measured on the CPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "inference" / "jobs"
LIMIT = float(os.environ.get("OOMPH_BENCH_LIMIT", "150"))
"""Seconds that one run may take."""


def blocks(stem, count):
    return [f"{stem}.{index}" for index in range(count)]


RESNET = [
    f"ResNet.layer{stage}.{index}"
    for stage, count in ((1, 3), (2, 4), (3, 6), (4, 3))
    for index in range(count)
]
VIT = [f"VisionTransformer.encoder.layers.encoder_layer_{index}" for index in range(12)]
VIT_L = [f"VisionTransformer.encoder.layers.encoder_layer_{index}" for index in range(24)]
BERT = blocks("BertForMaskedLM.bert.encoder.layer", 12)
GPT2 = blocks("GPT2LMHeadModel.transformer.h", 12)
LLAMA = blocks("LlamaForCausalLM.model.layers", 16)
UNET = [
    f"UNet.{name}"
    for name in (
        "middle1",
        "middle2",
        *(f"down.{i}.0" for i in (0, 1, 3, 4, 6, 7)),
        *(f"up.{i}.0" for i in (0, 1, 2)),
    )
]
MLP = blocks("Sequential", 17)[1:]

HALF = dict(name="half_weights", dtype="bf16")
INT8 = dict(name="int8_linear", kind="weight_only")
DYNAMIC = dict(name="int8_linear", kind="dynamic")
CACHE = dict(name="kv_cache", bits=8)
NO_GRAPH = dict(name="inference_mode")


def stream(modules):
    return dict(name="stream_weights", modules=modules)


def plans(modules, generates=False, split=True):
    parts = [] if generates or not split else [dict(name="split_batch", parts=4)]
    return dict(
        plain=[],
        half=[HALF],
        int8=[HALF, INT8, *([CACHE] if generates else [])],
        stream=[stream(modules), *parts],
    )


PEAKS = {
    "resnet50_b64": ("resnet50", ["--batch", "64"], plans(RESNET)),
    "resnet50_b256": ("resnet50", ["--batch", "256"], plans(RESNET)),
    "vit_b_16_b64": ("vit_b_16", ["--batch", "64"], plans(VIT)),
    "vit_b_16_b256": ("vit_b_16", ["--batch", "256"], plans(VIT)),
    "bert_base_16x512": ("bert_base", [], plans(BERT)),
    "bert_base_64x128": ("bert_base", ["--batch", "64", "--length", "128"], plans(BERT)),
    "gpt2_generate": ("gpt2", [], plans(GPT2, generates=True)),
    "gpt2_score_8x1024": ("gpt2", ["--score", "--prompt", "1024"], plans(GPT2)),
    "llama1b_generate": ("llama1b", [], plans(LLAMA, generates=True)),
    "llama1b_score_1x2048": (
        "llama1b",
        ["--score", "--batch", "1", "--prompt", "2048"],
        plans(LLAMA, split=False),
    ),
    "unet_b4": ("unet", [], plans(UNET)),
    "unet_b8_96": ("unet", ["--batch", "8", "--size", "96"], plans(UNET)),
    "mlp": (
        "mlp",
        ["--depth", "8"],
        dict(
            plain=[],
            no_graph=[NO_GRAPH],
            int8=[NO_GRAPH, HALF, DYNAMIC],
            stream=[NO_GRAPH, stream(MLP[:8]), dict(name="split_batch", parts=4)],
        ),
    ),
    "checkpoint": (
        "checkpoint",
        [],
        dict(
            plain=[],
            load=[dict(name="load_on_cpu", dtype="fp16")],
            load_only=[dict(name="load_on_cpu")],
            stream=[dict(name="load_on_cpu", dtype="fp16"), stream(VIT_L)],
        ),
    ),
}

DRIFT = {
    "resnet50": ("resnet50", ["--batch", "8"]),
    "vit_b_16": ("vit_b_16", ["--batch", "8"]),
    "bert_base": ("bert_base", ["--batch", "4", "--length", "128"]),
    "gpt2": ("gpt2", ["--batch", "4", "--prompt", "128", "--score"]),
    "llama1b": ("llama1b", ["--batch", "1", "--prompt", "64", "--score"]),
}
SMALL = {
    "resnet50": ("resnet50", ["--batch", "2"]),
    "vit_b_16": ("vit_b_16", ["--batch", "2"]),
    "bert_base": ("bert_base", ["--batch", "1", "--length", "64"]),
    "gpt2": ("gpt2", ["--batch", "1", "--prompt", "64", "--score"]),
    "llama1b": ("llama1b", ["--batch", "1", "--prompt", "16", "--score"]),
}
"""The same for a CPU."""
SMALL = {
    "resnet50": ("resnet50", ["--batch", "2"]),
    "vit_b_16": ("vit_b_16", ["--batch", "2"]),
    "bert_base": ("bert_base", ["--batch", "1", "--length", "64"]),
    "gpt2": ("gpt2", ["--batch", "1", "--prompt", "64", "--score"]),
    "llama1b": ("llama1b", ["--batch", "1", "--prompt", "16", "--score"]),
}
"""The same for a CPU."""
DRIFT_PLANS = dict(
    bf16=[HALF],
    fp16=[dict(HALF, dtype="fp16")],
    int8=[INT8],
    int8_dynamic=[DYNAMIC],
    bf16_int8=[HALF, INT8],
)


def toml(levers):
    lines = ['format = "oomph.plan/1"']
    for lever in levers:
        lines.append("[[lever]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in lever.items()]
    return "\n".join(lines) + "\n"


def oomph(words, place):
    began = time.monotonic()
    environment = dict(os.environ, OMP_NUM_THREADS="2", HF_HUB_OFFLINE="1")
    process = subprocess.Popen(
        [sys.executable, "-m", "oomph", *map(str, words)],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=LIMIT)
        return process.returncode, text[-600:], time.monotonic() - began
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and the script that it runs
        process.communicate()
        return 124, f"took more than {LIMIT} s", time.monotonic() - began


def peak(name, plan, gpu):
    script, arguments, known = PEAKS[name]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        (place / "plan.toml").write_text(toml(known[plan]))
        words = [
            "run",
            "-q",
            "--steps",
            "3",
            "--json",
            place / "run.json",
            "--out",
            place / "run",
            "--plan",
            place / "plan.toml",
        ]
        words += ["--gpu", gpu, "--no-measure"] if gpu else []
        status, text, seconds = oomph([*words, JOBS / f"{script}.py", *arguments], place)
        result = dict(status=status, seconds=round(seconds, 1))
        if (place / "run.json").exists():
            found = json.loads((place / "run.json").read_text())
            result.update(found["peak"], levers=found["levers"])
        else:
            result["error"] = text
        return result


def peaks(gpu, real, only, save):
    pairs = [
        (name, plan)
        for name, (_, _, known) in PEAKS.items()
        for plan in known
        if not only or name in only
    ]
    with ThreadPoolExecutor(9) as virtual, ThreadPoolExecutor(4) as actual:
        predicted = {pair: virtual.submit(peak, *pair, gpu) for pair in pairs}
        measured = {pair: actual.submit(peak, *pair, None) for pair in pairs} if real else {}
        rows = []
        for pair in pairs:
            row = dict(job=pair[0], plan=pair[1], predicted=predicted[pair].result())
            if real:
                row["measured"] = measured[pair].result()
                for kind in ("allocated_bytes", "reserved_bytes"):
                    a, b = row["predicted"].get(kind), row["measured"].get(kind)
                    if a and b:
                        row[f"error_{kind}"] = a / b - 1
            rows.append(row)
            save(rows)
            errors = "".join(f" {row[k]:+.4%}" for k in row if k.startswith("error_"))
            print(
                pair[0],
                pair[1],
                row["predicted"].get("allocated_bytes", row["predicted"]),
                errors,
                flush=True,
            )
        return rows


STREAM = "OOMPH_BENCH_STREAM"
WIDTH, DEPTH, CAP = 4096, 31, 4 << 30
"""A block is 256 MiB in bf16: 8 GiB of weights, within 4 GiB."""


def stream_child():
    """One process: the plan's levers, a cap of memory, and a clock around whole passes."""
    settings = json.loads(os.environ[STREAM])
    from oomph.levers import Levers

    import torch
    from torch import nn

    if settings["cap"]:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(settings["cap"] / total)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    levers = Levers(
        [
            NO_GRAPH,
            *([stream([f"Sequential.{i}" for i in range(DEPTH)])] if settings["streams"] else []),
        ]
    )
    levers.install()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(DEPTH)))
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data.zero_()
        p.data.view(-1)[::97] = torch.randn(p.data.view(-1)[::97].shape, generator=generator) * 0.05
    outcome = dict(
        weights_bytes=sum(p.nbytes for p in model.parameters()),
        cap=settings["cap"],
        batch=settings["batch"],
    )
    try:
        model.cuda().eval()
        x = torch.ones(settings["batch"], WIDTH, device="cuda")
        times = []
        for _ in range(8):
            torch.cuda.synchronize()
            began = time.perf_counter()
            out = model(x)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        outcome.update(
            pass_s=times, median_s=statistics.median(times[2:]), sum=out.double().sum().item()
        )
    except torch.OutOfMemoryError as error:
        outcome["error"] = str(error)[:200]
    outcome.update(
        peak_reserved=torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0),
        levers=levers.report(),
    )
    if settings["streams"]:
        host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(16):
            there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        outcome["link_bytes_per_s"] = 16 * host.nbytes / (time.perf_counter() - began)
        # The first block's weights stay in part (its first parameter), which is nothing here.
        outcome["bound_s"] = outcome["weights_bytes"] / outcome["link_bytes_per_s"]
        if "median_s" in outcome:
            outcome["slowdown_against_the_bound"] = outcome["median_s"] / max(
                outcome["bound_s"], settings.get("compute_s", 0)
            )
    print(json.dumps(outcome))


def streamed():
    def run(**settings):
        environment = dict(os.environ, **{STREAM: json.dumps(settings)})
        done = subprocess.run(
            [sys.executable, __file__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        try:
            return json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return dict(error=(done.stdout + done.stderr)[-600:])

    rows = []
    for batch in (64, 4096):
        whole = run(batch=batch, cap=0, streams=False)
        compute = whole.get("median_s", 0)
        rows += [
            dict(what="all on the GPU, no cap", **whole),
            dict(
                what="streamed, capped",
                **run(batch=batch, cap=CAP, streams=True, compute_s=compute),
            ),
        ]
    rows.append(dict(what="all on the GPU, capped", **run(batch=64, cap=CAP, streams=False)))
    for row in rows:
        print({k: v for k, v in row.items() if k not in ("pass_s", "levers")}, flush=True)
    return rows


def drift(name, plan, more=()):
    script, arguments = DRIFT[name]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        (place / "plan.toml").write_text(toml(DRIFT_PLANS[plan]))
        words = [
            "drift",
            "-q",
            "--plan",
            place / "plan.toml",
            "--json",
            place / "drift.json",
            "--out",
            place / "run",
            *more,
        ]
        status, text, seconds = oomph([*words, JOBS / f"{script}.py", *arguments], place)
        row = dict(model=name, plan=plan, status=status, seconds=round(seconds, 1))
        if (place / "drift.json").exists():
            found = json.loads((place / "drift.json").read_text())
            row.update(measured=found["measured"], why_not=found["why_not"])
        else:
            row["error"] = text
        outputs = (row.get("measured") or {}).get("outputs") or [{}]
        print(
            name,
            plan,
            {k: outputs[0].get(k) for k in ("relative_error", "agreement", "perplexity_change")},
            row.get("why_not"),
            flush=True,
        )
        return row


def drifts(at_once, only, plans, more, save):
    pairs = [(name, plan) for name in DRIFT if not only or name in only for plan in plans]
    rows = []
    with ThreadPoolExecutor(at_once) as pool:
        for row in pool.map(lambda pair: drift(*pair, more), pairs):
            rows.append(row)
            save(rows)


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def main():
    if STREAM in os.environ:
        return stream_child()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", default="stream,drift,peaks")
    parser.add_argument("--jobs", default="")
    parser.add_argument("--cpu", action="store_true", help="drift on the CPU")
    parser.add_argument("--small", action="store_true", help="small batches for drift, for a CPU")
    parser.add_argument("--plans", default=",".join(DRIFT_PLANS), help="of drift")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--at-once", type=int, default=4)
    args = parser.parse_args()
    import torch

    result = dict(
        torch=torch.__version__,
        cpu=processor(),
        cores=os.cpu_count(),
        gpu=None if args.virtual else torch.cuda.get_device_name(),
    )

    if args.small:
        DRIFT.update(SMALL)

    def save(part, found):
        result[part] = found
        Path(args.out).write_text(json.dumps(result, indent=1))

    for part in args.only.split(","):
        began = time.monotonic()
        jobs = args.jobs.split(",") if args.jobs else []
        if part == "peaks":
            peaks(args.gpu, not args.virtual, jobs, lambda rows: save("peaks", rows))
        elif part == "stream" and not args.virtual:
            save("stream", streamed())
        elif part == "drift":
            more = ["--cpu"] if args.cpu else []
            plans = args.plans.split(",")
            drifts(args.at_once, jobs, plans, more, lambda rows: save("drift", rows))
        save(f"{part}_seconds", round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
