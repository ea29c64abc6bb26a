"""Seeds give what a real GPU gives for them: compared with what an H100 measured."""

import json
import os

from tests.support.command import ROOT

SCRIPT = f"""
import json, sys

import importlib.util

def module(path):
    spec = importlib.util.spec_from_file_location(path.split("/")[-2], path)
    spec.loader.exec_module(found := importlib.util.module_from_spec(spec))
    return found

gpu = module({os.path.join(ROOT, "bench/gpu/random_numbers.py")!r})
gpu.SIZES, gpu.FLOATS = [7, 100, 1_023], gpu.FLOATS[:2] + gpu.FLOATS[3:]
compare = module({os.path.join(ROOT, "bench/values/random_numbers.py")!r})
with open(compare.TRUTH) as file:
    result = compare.compared(gpu.measured(), json.load(file)["cases"])
import torch
# A grid is full, and each thread draws again.
torch.cuda.manual_seed(gpu.SEED)
large = gpu.hashlib.sha256(gpu.bits(torch.rand(1_081_345, device="cuda"))).hexdigest()
with open(compare.TRUTH) as file:
    result["large"] = large == json.load(file)["cases"]["rand 1081345 float32"]["sha256"]
with open("result-numbers.json", "w") as file:
    json.dump(result, file)
"""
# What a kernel of its own draws, by another rule.
OTHERS = ("poisson", "rrelu", "multinomial again")
# What follows from logarithms, sines and tangents, which a GPU rounds its own way.
ROUNDED = ("randn", "normal_", "exponential_", "cauchy_", "log_normal_", "geometric_", "trunc_normal_",
           "kaiming_uniform_", "xavier_normal_", "gumbel_softmax", "complex randn", "channels_last normal_", "attention backward")  # fmt: skip


def test_numbers_are_those_of_a_real_gpu(oomph, tmp_path):
    run = oomph(SCRIPT, "--keep-files", "--compute", "1GiB", gpu="h200")
    assert run.status == 0, run.err
    found = json.loads((tmp_path / "result-numbers.json").read_text())
    assert found.pop("large") is True and len(found) > 90
    for name, how in found.items():
        if not name.startswith(OTHERS):
            assert how == "same bits" or (how == "rounding" and name.startswith(ROUNDED)), name
    assert found["randperm 1023"] == found["dropout 100 bfloat16"] == "same bits"
