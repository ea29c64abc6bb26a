"""What the planner predicts of levers before any run of them, beside what runs on the virtual GPU measure:

    cargo build --release -p oomph-plan --example predict
    python bench/fit/predictions.py [JOB…] [--out FILE] [--table]

Each job of `jobs/` is run as it is on a virtual H200; then each lever (and some pairs) is predicted from
that one run, and run. Rows are appended to FILE; `--table` prints those that are there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PREDICT = HERE.parents[1] / "target/release/examples/predict"
OOMPH = Path(sys.executable).with_name("oomph")
GPU = "h200"
BLOCKS = {
    "gpt2": [f"GPT2LMHeadModel.transformer.h.{i}" for i in range(12)],
    "bert_base": [f"BertForSequenceClassification.bert.encoder.layer.{i}" for i in range(12)],
    "vit_b_16": [f"VisionTransformer.encoder.layers.encoder_layer_{i}" for i in range(12)],
    "llama1b": [f"LlamaForCausalLM.model.layers.{i}" for i in range(22)],
    "resnet50": [f"ResNet.layer{n}.{i}" for n, size in enumerate((3, 4, 6, 3), 1) for i in range(size)],
}  # fmt: skip

PARTS = {
    "gpt2": ("mlp.c_fc", "mlp.act"),
    "bert_base": ("intermediate.dense", "intermediate.intermediate_act_fn"),
    "vit_b_16": ("mlp.0", "mlp.1"),
    "llama1b": ("input_layernorm", "mlp.gate_proj", "mlp.act_fn"),
    "resnet50": ("conv3",),
}
"""What is computed again in each block."""


def variants(job):
    """Lists of levers."""
    blocks = BLOCKS[job]
    parts = dict(name="micro_batch", parts=4)
    on_cpu, in_backward = dict(name="optimizer_on_cpu"), dict(name="step_in_backward")
    found = [[on_cpu], [in_backward], [dict(name="chunked_cross_entropy", chunks=8)]]
    found.append([dict(name="allocator", conf="expandable_segments:True")])
    again = [f"{block}.{part}" for block in blocks for part in PARTS[job]]
    found.append([dict(name="recompute", modules=again)])
    if job != "resnet50":  # its batch normalizations see a batch
        found.append([parts])
    for count in (len(blocks) // 3, len(blocks)):
        for name in ("checkpoint", "offload_activations"):
            found.append([dict(name=name, modules=blocks[:count])])
    whole = found[-2]
    others = [on_cpu, in_backward, *([parts] if [parts] in found else [])]
    return [*found, *([*whole, other] for other in others)]


def title(levers):
    """In a few words."""
    count = [f" of {len(lever['modules'])}" if "modules" in lever else "" for lever in levers]
    return " + ".join(lever["name"] + of for lever, of in zip(levers, count, strict=True))


def run(job, place, *options):
    """The JSON of a run."""
    result = place / "run.json"
    result.unlink(missing_ok=True)
    subprocess.run(
        [OOMPH, "run", "--gpu", GPU, "--steps", "3", "-q", "--no-measure", "--json", result, *options,
         HERE / "jobs" / f"{job}.py"],
        cwd=place, capture_output=True,
    )  # fmt: skip
    return json.loads(result.read_text()) if result.exists() else None


def plan(levers):
    """A plan file."""
    lines = ['format = "oomph.plan/1"']
    for lever in levers:
        lines += ["[[lever]]", *(f"{key} = {json.dumps(value)}" for key, value in lever.items())]
    return "\n".join(lines)


def measure(job, out):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(job, place, "--out", place / "plain")
        levers = variants(job)
        told = subprocess.run(
            [PREDICT, place / "plain", *map(json.dumps, levers)],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()[1:]  # fmt: skip
        for chosen, line in zip(levers, told, strict=True):
            (place / "plan.toml").write_text(plan(chosen))
            found = run(job, place, "--plan", place / "plan.toml", "--out", place / "run")
            if found is None or not all(lever["applied"] for lever in found["levers"]):
                continue  # nothing of it in this job
            words = line.split()
            row = dict(
                job=job, levers=title(chosen),
                predicted=dict(allocated=int(words[0]), used=int(words[3])),
                measured={name: found["peak"][f"{name}_bytes"] >> 20 for name in ("allocated", "used")},
            )  # fmt: skip
            print(json.dumps(row), flush=True)
            with open(out, "a") as file:
                file.write(json.dumps(row) + "\n")


def table(out):
    print("| job | levers | allocated | used |\n| --- | --- | ---: | ---: |")
    for line in out.read_text().splitlines():
        row = json.loads(line)
        cells = []
        for name in ("allocated", "used"):
            predicted, measured = row["predicted"][name], row["measured"][name]
            cells.append(f"{measured} MiB ({100 * (predicted / measured - 1):+.1f} %)")
        print(f"| {row['job']} | {row['levers']} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="*", default=list(BLOCKS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "predictions.jsonl")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        for job in options.jobs:
            measure(job, options.out)
    table(options.out)


if __name__ == "__main__":
    main()
