"""Each lever of jobs that infer on each model, on the virtual GPU:

    python bench/inference/run.py OUT.json [--only MODEL,…] [--levers LEVER,…]

Every run is `oomph run --plan` with that lever alone, or after `inference_mode` where the script builds a
graph; what it says is the peak, and whether the lever took effect. `fit` is `oomph fit --inference` at a tenth less than the plain job's peak, and what it chose. Needs
timm. What is measured is written after each run, and kept: a second run adds to it. `--table` prints it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = Path(__file__).resolve().parent / "jobs"
GPU = "rtx-4090"
LIMIT = 400
"""Seconds that one command may take."""

MODELS = {
    "convnext_tiny": ("timm_model", ["--model", "convnext_tiny"]),
    "vit_small": ("timm_model", ["--model", "vit_small_patch16_224"]),
    "swin_tiny": ("timm_model", ["--model", "swin_tiny_patch4_window7_224"]),
    "efficientnet_b0": ("timm_model", ["--model", "efficientnet_b0"]),
    "unet": ("unet", ["--batch", "2", "--size", "32"]),
    "gpt2_generate": ("gpt2", ["--batch", "4", "--prompt", "128", "--new", "8"]),
    "gpt2_score": ("gpt2", ["--batch", "4", "--prompt", "512", "--score"]),
}
LEVERS = {
    "inference_mode": {},
    "load_on_cpu": {},
    "chunked_logits": {},
    "half_weights": {"dtype": "bf16"},
    "int8_linear": {"kind": "weight_only"},
    "int8_dynamic": {"kind": "dynamic"},
    "kv_cache": {"bits": 8},
    "split_batch": {"parts": 2},
    "stream_weights": {},
    "compile": {},
}
MIB = 2**20


def oomph(*words, place):
    command = [os.path.join(os.path.dirname(sys.executable), "oomph"), *map(str, words)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return dict(error=f"longer than {LIMIT} s")
    found = Path(place, "out.json")
    result = json.loads(found.read_text()) if found.exists() else {}
    found.unlink(missing_ok=True)
    if done.returncode not in (0, 3) or not result:
        result["error"] = (done.stderr.strip() or done.stdout.strip())[-400:]
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def blocks(record):
    """The modules of numbered lists that are in no other numbered module."""
    names = [
        m["name"] for m in record["facts"]["modules"] if not m["container"] and m["parameters"]
    ]
    found = []
    for name in names:
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        if numbers:
            # The innermost that has parts of its own.
            stem = ".".join(parts[: numbers[min(1, len(numbers) - 1)] + 1])
            if stem not in found:
                found.append(stem)
    return [b for b in found if not any(b.startswith(f"{other}.") for other in found)]


def plan(name, record):
    parameters = dict(LEVERS[name])
    if name == "stream_weights":
        parameters["modules"] = blocks(record)
    lever = "int8_linear" if name == "int8_dynamic" else name
    lines = ['format = "oomph.plan/1"']
    if record["facts"]["graph"] and name not in ("inference_mode", "load_on_cpu"):
        # Where the script builds a graph, the others come after what leaves it out.
        lines += ["[[lever]]", 'name = "inference_mode"']
    lines += ["[[lever]]", f'name = "{lever}"']
    return "\n".join(lines + [f"{k} = {json.dumps(v)}" for k, v in parameters.items()]) + "\n"


def measure(name, wanted, found, save):
    script, arguments = MODELS[name]
    script = [JOBS / f"{script}.py", *arguments]
    with tempfile.TemporaryDirectory() as place:
        words = ["-q", "--gpu", GPU, "--json", "out.json"]
        plain = oomph("run", *words, "--out", "plain", *script, place=place)
        found["plain"] = short(plain)
        save()
        if "error" in plain:
            return
        record = json.loads(Path(place, "plain", "record.json").read_text())
        for lever in wanted:
            if lever == "fit":
                used = plain["peak"]["used_bytes"]
                memory = ["--inference", "--margin", "0%", "--memory", int(used * 0.9)]
                fit = oomph("fit", *words, *memory, *script, place=place)
                chosen = fit["plans"][fit["chosen"]] if fit.get("chosen") is not None else None
                found["fit"] = dict(
                    memory=int(used * 0.9), seconds=fit["seconds"], error=fit.get("error"),
                    levers=[entry["name"] for entry in chosen["levers"]] if chosen else None,
                    used=chosen["peak"]["used_bytes"] if chosen else None,
                )  # fmt: skip
            else:
                Path(place, "plan.toml").write_text(plan(lever, record))
                run = oomph("run", *words, "--plan", "plan.toml", *script, place=place)
                found[lever] = short(run)
            save()
            print(name, lever, json.dumps(found[lever])[:200], flush=True)


def short(run):
    if "error" in run or run.get("verdict") == "refused":
        why = run.get("failure") or run.get("error", "")
        return dict(error=why[:400], seconds=run.get("seconds"))
    lever = (run["levers"] or [{}])[-1]
    return dict(
        allocated=run["peak"]["allocated_bytes"], used=run["peak"]["used_bytes"],
        seconds=run["seconds"], applied=lever.get("applied"), note=lever.get("note"),
    )  # fmt: skip


def table(results):
    columns = [*LEVERS, "fit"]
    print("| model | plain | " + " | ".join(columns) + " |")
    print("| --- " * (len(columns) + 2) + "|")
    for name, found in results.items():
        plain = found["plain"]["allocated"]
        cells = []
        for column in columns:
            cell = found.get(column)
            if cell is None:
                cells.append("")
            elif cell.get("error"):
                cells.append("refused" if "cannot be applied" in cell["error"] else "failed")
            elif column == "fit":
                cells.append(", ".join(cell["levers"] or ["nothing"]))
            elif not cell["applied"]:
                cells.append("–")
            else:
                cells.append(f"{cell['allocated'] / plain:.2f}×")
        print(f"| {name} | {plain / MIB:.0f} MiB | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--only")
    parser.add_argument("--levers")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    path = Path(given.out)
    results = json.loads(path.read_text()) if path.exists() else {}
    if given.table:
        return table(results)

    def save():
        path.write_text(json.dumps(results, indent=1) + "\n")

    wanted = given.levers.split(",") if given.levers else [*LEVERS, "fit"]
    for name in given.only.split(",") if given.only else MODELS:
        measure(name, wanted, results.setdefault(name, {}), save)


if __name__ == "__main__":
    main()
