"""ONNX Runtime's memory on a GPU: `python bench/gpu/onnx_sessions.py OUT.json` on the real one, and
`python bench/gpu/onnx_sessions.py OUT.json --virtual h200` on the virtual one; the second compares with what
is in `OUT.json` already. Needs torch, torchvision and onnxruntime-gpu (built for the CUDA of torch).

Each job exports a model, makes a session with the CUDA provider and runs it three times, in a process
of its own. What is compared is what the session's arena took from the GPU, request by request, as ONNX
Runtime logs it, and the memory that the driver calls used.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

JOBS = ("mlp", "convolutions", "resnet50", "resnet50_same", "encoder", "lstm")
LIMIT = 150
"""Seconds that one run may take."""
REQUEST = re.compile(r"Extending BFCArena for Cuda\..*?num_bytes: (\d+)")
GROWN = re.compile(r"Extended allocation by (\d+) bytes")


def export(name, path):
    """Write the model of a job to `path`; returns what it is given."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    kind = name.removesuffix("_same")
    if kind == "mlp":
        model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(2048, 2048), nn.ReLU())))
        x, batch = torch.zeros(1, 2048), 4096
    elif kind == "convolutions":
        model = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        x, batch = torch.zeros(1, 3, 224, 224), 16
    elif kind == "resnet50":
        import torchvision

        model = torchvision.models.resnet50(weights=None)
        x, batch = torch.zeros(1, 3, 224, 224), 16
    elif kind == "encoder":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        torch.backends.mha.set_fastpath_enabled(False)
        x, batch = torch.zeros(1, 256, 512), 16
    else:
        model = nn.LSTM(256, 512, 2, batch_first=True)
        x, batch = torch.zeros(1, 128, 256), 32
    torch.onnx.export(
        model.eval(), (x,), path, dynamo=False, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "n"}},
    )  # fmt: skip
    return [batch, *x.shape[1:]]


def job(name, path, shape):
    """One job: what is measured goes to standard output, ONNX Runtime's log to the other."""
    import numpy as np
    import onnxruntime
    import torch

    onnxruntime.set_default_logger_severity(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 1
    provider = {}
    if name.endswith("_same"):
        provider["arena_extend_strategy"] = "kSameAsRequested"
    session = onnxruntime.InferenceSession(
        path, options, providers=[("CUDAExecutionProvider", provider)]
    )
    assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
    used = []
    for _ in range(3):
        session.run(None, {"x": np.zeros(shape, "f4")})
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
    version = onnxruntime.__version__
    print(json.dumps(dict(used=used, onnxruntime=version, torch=torch.__version__)))


def run(name, path, shape, virtual):
    words = [__file__, "--job", name, "--path", path, "--shape", json.dumps(shape)]
    command = [sys.executable, *words]
    if virtual:
        oomph = os.path.join(os.path.dirname(sys.executable), "oomph")
        out = os.path.join(os.path.dirname(path), "run")
        command = [oomph, "run", "--quiet", "--gpu", virtual, "--out", out, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        return dict(error=(done.stderr + done.stdout)[-400:])
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(lines[0])
    # The arena in host memory logs the same lines: a growth is that of the request before it.
    arena, requests, asked = [], [], None
    for line in done.stderr.splitlines():
        if "Extending BFCArena" in line:
            found = REQUEST.search(line)
            asked = int(found[1]) if found else None
        elif (found := GROWN.search(line)) and asked is not None:
            arena.append(int(found[1]))
            requests.append(asked)
            asked = None
    return dict(result, requests=requests, arena=arena, arena_bytes=sum(arena))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--virtual", metavar="GPU")
    parser.add_argument("--only", help="jobs, separated by commas")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        return job(given.job, given.path, json.loads(given.shape))
    if not given.out:
        parser.error("expected a file for the results: python bench/gpu/onnx_sessions.py OUT.json")
    found = json.loads(Path(given.out).read_text()) if os.path.exists(given.out) else {}
    where = "virtual" if given.virtual else "real"
    for name in given.only.split(",") if given.only else JOBS:
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "model.onnx")
            shape = export(name, path)
            mine = run(name, path, shape, given.virtual)
        found.setdefault(name, {})[where] = mine
        Path(given.out).write_text(json.dumps(found, indent=1) + "\n")
        other = found[name].get("real" if given.virtual else "virtual", {})
        line = f"{name:16}{mine.get('arena_bytes', 0) / 2**20:9.0f} MiB arena"
        if "used" in mine:
            line += f"{mine['used'][-1] / 2**20:9.0f} MiB used"
        if other.get("arena_bytes") and mine.get("arena_bytes"):
            same = (
                "the same requests" if mine["requests"] == other["requests"] else "other requests"
            )
            line += f"  {mine['arena_bytes'] / other['arena_bytes'] - 1:+.2%} arena, {same}"
        print(mine.get("error") or line, flush=True)


if __name__ == "__main__":
    main()
