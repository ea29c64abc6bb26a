"""Jobs that infer: what `oomph fit` plans, what a plan's levers need, what `oomph drift` measures."""

import json
import os
import subprocess
import textwrap

import pytest

from tests.support import forked, schemas
from tests.support.command import OOMPH

MODEL = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=1024):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*(Block() for _ in range(8)))

        def forward(self, x):
            return self.blocks(x)

    torch.manual_seed(0)
    model = Net().cuda().eval()
"""
GRAPH = (
    MODEL
    + """
    for _ in range(3):
        y = model(torch.randn(2048, 1024).cuda())
        print(y.shape)
"""
)
QUIET = (
    MODEL
    + """
    with torch.no_grad():
        for _ in range(3):
            y = model(torch.randn(64, 1024).cuda())
            print(y.shape)
"""
)
LOAD = (
    MODEL.replace("Net().cuda()", "Net()")
    + """
    torch.save(model.state_dict(), "net.pt")
    model = model.cuda()
    state = torch.load("net.pt", map_location="cuda")
    model.load_state_dict(state)
    del state
    model = model.half()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 1024, device="cuda").half())
"""
)
WEIGHTS = 8 * 2 * 4096 * 1024 * 4
"""Bytes of the model's matrices."""

TRAINING = [
    "set_to_none",
    "optimizer_step",
    "no_grad_eval",
    "inplace_activations",
    "micro_batch",
    "mixed_precision",
    "checkpoint",
    "offload_activations",
    "step_in_backward",
    "optimizer_8bit",
    "optimizer_on_cpu",
]


class Done:
    """What a command gave."""

    def __init__(self, place, words, code, environment=()):
        (place / "script.py").write_text(textwrap.dedent(code))
        done = subprocess.run(
            [OOMPH, *map(str, words)],
            cwd=place, capture_output=True, text=True, timeout=300,
            env={**os.environ, "COLUMNS": "100", **dict(environment)},
        )  # fmt: skip
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        path = place / "out.json"
        self.json = schemas.read(path.read_text()) if path.exists() else None


def fit(place, code, *options):
    words = ["fit", "--gpu", "rtx-3060", "--margin", "0%", "--json", "out.json", *options]
    return Done(place, [*words, "script.py"], code)


def run(place, code, *levers):
    (place / "plan.toml").write_text(toml(levers))
    words = ["run", "--gpu", "rtx-3060", "-q", "--json", "out.json", "--plan", "plan.toml"]
    return Done(place, [*words, "script.py"], code)


@pytest.fixture(scope="module")
def without_gpu(tmp_path_factory):
    """A fork server for scripts that run on the CPU."""
    if not os.environ[forked.FORKS]:
        yield {}
        return
    with forked.server(tmp_path_factory.mktemp("forks"), {}) as environment:
        yield environment


@pytest.fixture
def drift(tmp_path, without_gpu):
    """`drift(code, levers, *options)`: what `oomph drift` gave, on the CPU or with `--gpu`."""

    def measure(code, levers, *options):
        (tmp_path / "plan.toml").write_text(toml(levers))
        words = ["drift", "--json", "out.json", "--plan", "plan.toml", *options, "script.py"]
        return Done(tmp_path, words, code, {} if "--gpu" in options else without_gpu)

    return measure


def toml(levers):
    lines = ['format = "oomph.plan/1"']
    for name, parameters in levers:
        lines += ["[[lever]]", f'name = "{name}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in parameters.items()]
    return "\n".join(lines) + "\n"


def names(plan):
    return [lever["name"] for lever in plan["levers"]]


def test_a_graph_that_nobody_needs_goes_first(tmp_path):
    found = fit(tmp_path, GRAPH, "--memory", "700MiB")
    assert found.status == 0, found.err + found.out
    chosen = found.json["plans"][found.json["chosen"]]
    assert found.json["inference"] and names(chosen) == ["inference_mode"]
    assert chosen["same_results"] == "exact" and chosen["verified"]
    offered = {name for plan in found.json["plans"] for name in names(plan)}
    assert not offered & set(TRAINING)
    # By hand it is one line.
    before = found.json["plain"]["used_bytes"]
    subprocess.run(["git", "apply", "oomph-plan.patch"], cwd=tmp_path, check=True)
    by_hand = run(tmp_path, (tmp_path / "script.py").read_text())
    assert by_hand.json["peak"]["used_bytes"] == pytest.approx(
        chosen["peak"]["used_bytes"], rel=0.02
    )
    assert chosen["peak"]["used_bytes"] < before - 400 * 2**20


def test_weights_that_do_not_fit_are_streamed_or_narrowed(tmp_path):
    # Weights in fp32 take 256 MiB, and the context 119 MiB.
    found = fit(tmp_path, QUIET, "--memory", "320MiB", "--allow", "stream_weights,half_weights")
    assert found.status == 0, found.err + found.out
    plans = {plan["same_results"]: plan for plan in found.json["plans"] if plan["verified"]}
    chosen = found.json["plans"][found.json["chosen"]]
    assert "stream_weights" in names(chosen) and chosen["same_results"] in ("exact", "rounding")
    assert chosen["peak"]["used_bytes"] <= 320 * 2**20 < WEIGHTS + (119 << 20)
    assert "half_weights" in names(plans["numerics"])
    offered = {name for plan in found.json["plans"] for name in names(plan)}
    assert not offered & set(TRAINING)
    narrow = fit(tmp_path, QUIET, "--memory", "320MiB", "--allow", "half_weights")
    assert narrow.status == 0, narrow.err + narrow.out
    assert "not measured" in narrow.out and "oomph drift --plan oomph-plan.toml" in narrow.out


HEAD = """
    import torch
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(50000, 64), nn.Linear(64, 50000)
        def forward(self, x):
            return self.head(self.tokens(x))
    model = Net().cuda().eval()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randint(50000, (4, 512)).cuda()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
"""


def test_logits_that_do_not_fit_are_computed_in_chunks(tmp_path, drift):
    found = fit(tmp_path, HEAD, "--memory", "400MiB")
    assert found.status == 0, found.err + found.out
    chosen = found.json["plans"][found.json["chosen"]]
    assert names(chosen) == ["chunked_logits"] and chosen["same_results"] == "rounding"
    # The logits and their logarithms of 2048 rows, against 335 rows of each.
    logits = 2048 * 50000 * 4
    assert found.json["plain"]["allocated_bytes"] > 2 * logits
    assert chosen["peak"]["allocated_bytes"] < 2 * (64 << 20) + (60 << 20)
    assert "model.lm_head(" in (tmp_path / "oomph-plan.md").read_text()
    exact = drift(HEAD, [("chunked_logits", {})], "--max-drift", "1e-5", "--calls", "1")
    assert exact.status == 0, exact.err + exact.out


FUSED = """
    import torch
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(256, 4096), nn.Linear(4096, 256)
        def forward(self, x):
            h = self.up(x)
            return self.down(torch.tanh(h * 1.5 + 0.5) * torch.sigmoid(h) + h.square())
    model = Net().cuda().eval()
    with torch.no_grad():
        for _ in range(3):
            y = model(torch.randn(8192, 256, device="cuda"))
"""


def test_compiled_models_may_fit_where_nothing_else_does(tmp_path):
    words = ["--compile", "--allow", "compile", "--memory", "600MiB"]
    found = fit(tmp_path, FUSED, *words)
    assert found.status == 0, found.err + found.out
    chosen = found.json["plans"][found.json["chosen"]]
    assert names(chosen) == ["compile"] and chosen["verified"]
    assert chosen["same_results"] == "rounding"
    # What is fused leaves two of the tensors that are as wide as the layer.
    wide = 8192 * 4096 * 4
    assert found.json["plain"]["allocated_bytes"] > 4 * wide
    assert chosen["peak"]["allocated_bytes"] < 2.5 * wide


def test_what_the_levers_leave_of_the_weights(tmp_path):
    plain = WEIGHTS
    half = ("half_weights", {"dtype": "bf16"})
    int8 = ("int8_linear", {"kind": "weight_only"})
    blocks = ("stream_weights", {"modules": [f"Net.blocks.{index}" for index in range(8)]})
    found = run(tmp_path, QUIET, half)
    assert found.json["by_category"]["parameters"] == pytest.approx(plain / 2, rel=0.01)
    found = run(tmp_path, QUIET, half, int8)
    assert found.json["by_category"]["parameters"] <= 0.51 * plain / 2
    # Neither the fp32 weights nor the whole model ever reach the GPU.
    assert found.json["peak"]["allocated_bytes"] < plain / 2
    found = run(tmp_path, QUIET, blocks)
    assert found.json["peak"]["allocated_bytes"] < 2.5 * WEIGHTS / 8
    assert found.json["levers"][0]["applied"] == 8


def test_loading_is_part_of_the_job(tmp_path):
    found = fit(tmp_path, LOAD, "--memory", "300MiB")
    assert found.status == 0, found.err + found.out
    assert found.json["plain"]["allocated_bytes"] == pytest.approx(2 * WEIGHTS, rel=0.02)
    summary = json.loads(next(tmp_path.glob("oomph-report/*/plain/record.json")).read_text())
    assert "load" in {scope[0] for scope in summary["scopes"]}
    chosen = found.json["plans"][found.json["chosen"]]
    assert chosen["levers"] == [{"name": "load_on_cpu", "dtype": "fp16"}]
    assert chosen["same_results"] == "exact"
    # The weights in 16 bits, and cuBLAS's work space.
    assert WEIGHTS / 2 < chosen["peak"]["allocated_bytes"] < WEIGHTS / 2 + (20 << 20)


def test_why_loading_ran_out_of_memory(tmp_path):
    code = LOAD.replace('map_location="cuda"', 'map_location="cpu"')
    plain = run(tmp_path, code).json
    # The weights in fp32, and the first of them in 16 bits.
    assert plain["peak_phase"] == "load" and plain["by_category"]["parameters"] > WEIGHTS
    needed = plain["peak"]["allocated_bytes"] + plain["by_category"]["cuda_context"]
    memory = needed - (4 << 20)
    words = ["run", "--gpu", "rtx-3060", "--memory", memory, "--no-measure", "--out", "run"]
    done = Done(tmp_path, [*words, "-q", "script.py"], code)
    assert done.status == 3, done.err
    found = json.loads((tmp_path / "run" / "explanation.json").read_text())
    assert found["causes"][0]["id"] == "cast_on_gpu"
    assert "load_on_cpu" in [fix.get("lever") for fix in found["causes"][0]["fixes"]]


def test_the_largest_images_of_a_job_without_a_loader(tmp_path):
    code = """
        import torch
        from torch import nn
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1)).cuda().eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(4, 3, 128, 128).cuda())
    """
    found = fit(tmp_path, code, "--memory", "1GiB", "--max-resolution")
    assert found.status == 0, found.err + found.out
    (largest,) = found.json["largest"]
    assert (largest["of"], largest["now"]) == ("resolution", 128)
    assert largest["plain"] > 400 and largest["plain_used_bytes"] <= 2**30
    assert 0 < largest["time_of_one"] < 1.5


def test_what_a_model_is_called_with_is_resized():
    import torch
    from oomph._recorder.resize import Resize, sizes

    given = ((torch.zeros(4, 3, 32, 16),), {"tokens": torch.zeros(4, 7, dtype=torch.long), "k": 2})
    assert sizes(given) == {"batch": 4, "length": 7, "height": 32}
    (image,), others = Resize(batch=6, length=9, height=64)._resize(given)
    assert image.shape == (6, 3, 64, 32)
    assert others["tokens"].shape == (6, 9) and others["k"] == 2


def test_a_module_that_raises_is_left(tmp_path):
    code = """
        import torch
        from torch import nn
        class Fails(nn.Module):
            def forward(self, x):
                raise ValueError("no")
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fails, self.layer = Fails(), nn.Linear(1024, 1024)
            def forward(self, x):
                try:
                    self.fails(x)
                except ValueError:
                    return self.layer(x)
        model = Net().cuda()
        with torch.no_grad():
            for _ in range(3):
                y = model(torch.randn(8192, 1024).cuda())
    """
    found = run(tmp_path, code).json
    assert found["step_count"] == 3
    assert [m["name"] for m in found["modules"] if "fails" in m["name"]] == []


def test_a_job_that_goes_back_does_not_infer(tmp_path):
    code = GRAPH.replace("print(y.shape)", "y.sum().backward()")
    found = fit(tmp_path, code, "--inference", "--memory", "300MiB")
    assert found.status == 2 and "calls backward" in found.err
    assert "the job does not fit" in fit(tmp_path, code, "--memory", "300MiB").err


def test_drift_is_measured_on_the_cpu(tmp_path, drift):
    half = [("half_weights", {"dtype": "bf16"})]
    found = drift(QUIET, half, "--calls", "2")
    assert found.status == 0, found.err + found.out
    assert found.json["format"] == "oomph.drift/1" and found.json["measured"]["calls"] == 2
    output = found.json["measured"]["outputs"][0]
    # As the same cast by hand, computed here.
    scope = {}
    code = textwrap.dedent(MODEL).replace(".cuda()", "")
    exec(compile(code, "model.py", "exec"), scope)
    torch, model = scope["torch"], scope["model"]
    with torch.no_grad():
        x = torch.randn(64, 1024)
        plain = model(x)
        low = model.bfloat16()(x.bfloat16()).float()
    error = float((plain - low).norm() / plain.norm())
    assert error > 0 and output["relative_error"] == pytest.approx(error, rel=0.5)
    assert output["agreement"] > 0.8 and output["compared"] == 128
    layers = found.json["measured"]["layers"]
    assert layers[0]["growth"] >= layers[-1]["growth"] > 0 and "blocks." in layers[0]["name"]


def test_what_drift_keeps_of_a_call_runs_no_code(tmp_path, drift):
    """The script may write there, too, and so may what it calls."""
    bomb = """
    import os, torch
    class Bomb:
        def __reduce__(self):
            return open, ("ran", "w")
    if os.path.exists("run/call-0.pt"):
        torch.save(dict(given=Bomb(), values={}, layers={}), "run/call-0.pt")
    """
    found = drift(bomb + QUIET, [("inference_mode", {})], "--calls", "1", "--out", "run")
    assert not (tmp_path / "ran").exists()
    assert found.status != 0 and "weights_only" in found.err


def test_too_much_drift_is_refused_and_none_is_not_zero(tmp_path, drift):
    int8 = [("int8_linear", {"kind": "dynamic"})]
    refused = drift(QUIET, int8, "--max-drift", "0.0001", "--calls", "1")
    assert (
        refused.status == 3
        and refused.json["exceeded"]
        and "above the limit of 0.010 %" in refused.out
    )
    exact = drift(QUIET, [("inference_mode", {})], "--max-drift", "0", "--calls", "1")
    assert exact.status == 0 and exact.json["measured"]["outputs"][0]["relative_error"] == 0
    virtual = drift(QUIET, int8, "--gpu", "rtx-3060")
    assert virtual.json["measured"] is None and "not measured" in virtual.out
    virtual = drift(QUIET, int8, "--gpu", "rtx-3060", "--max-drift", "1")
    assert virtual.status == 2
    # A lever that does nothing here has no drift that could be vouched for.
    idle = drift(QUIET, [("kv_cache", {"bits": 8})], "--max-drift", "1")
    assert idle.status == 2 and idle.json["measured"] is None and "kv_cache" in idle.out


def test_what_says_cuda_computes_on_the_cpu(tmp_path, drift):
    code = """
        import torch
        from torch import nn
        torch.set_default_device("cuda")
        generator = torch.Generator(device="cuda").manual_seed(3)
        model = nn.Linear(8, 8, device=0)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        x = torch.randn(4, 8, generator=generator, device="cuda:0", pin_memory=False).to(0)
        with torch.device("cuda"), torch.autocast("cuda", dtype=torch.bfloat16):
            y = model(x + torch.ones(8)).cuda(non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        assert isinstance(torch.default_generator, torch.Generator)
        print(y.device, y.dtype, begin.elapsed_time(end))
    """
    found = drift(code, [("inference_mode", {})], "--out", "drift")
    assert found.status == 0, found.err
    assert found.json["measured"]["outputs"][0]["relative_error"] == 0
    assert (tmp_path / "drift" / "plain.log").read_text().startswith("cpu torch.bfloat16 0.0")
