"""`oomph fit` on real PyTorch: verified plans, changes by hand, exit statuses, wrong input."""

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.support import schemas
from tests.support.command import command, fit
from tests.support.jobs import TRAIN, WIDE


def peak(place, script, *options):
    """The peak of a script in bytes: allocated and used."""
    done = command(place, "run", "--gpu", "rtx-3060", "--memory", "80GiB", "--steps", "3", "-q",
                   "--json", "run.json", *options, script)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((place / "run.json").read_text())["peak"]


def found_budget(found):
    """What a plan might use, in bytes."""
    return found.json["gpu"]["memory_bytes"] - found.json["gpu"]["margin_bytes"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The peak of the job as it is."""
    place = tmp_path_factory.mktemp("plain")
    (place / "script.py").write_text(textwrap.dedent(TRAIN))
    return peak(place, "script.py")


def test_a_plan_is_found_verified_written_and_holds(tmp_path, plain):
    budget = plain["used_bytes"] * 60 // 100
    found = fit(tmp_path, TRAIN, "--memory", budget, "--margin", "0%", "--keep-results")
    assert found.status == 0, found.err
    assert found.json["format"] == "oomph.fit/1" and found.json["outcome"] == "fits"
    chosen = found.chosen
    assert chosen["verified"] and chosen["same_results"] in ("exact", "rounding")
    assert chosen["peak"]["used_bytes"] <= budget < plain["used_bytes"]
    # Offloading is predicted with all that may be in flight: above what is measured, not below.
    assert 0.8 < chosen["peak"]["used_bytes"] / chosen["predicted"]["used_bytes"] < 1.05
    assert "◄ chosen" in found.out and "oomph run --plan oomph-plan.toml script.py" in found.out
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    plan = tomllib.loads((tmp_path / "oomph-plan.toml").read_text())
    assert schemas.read(json.dumps(plan))["format"] == "oomph.plan/1"
    assert len(plan["job"]["sha256"]) == 64
    assert plan["planned"]["used_bytes"] == chosen["peak"]["used_bytes"]
    # Applied at the budget, it runs and needs what was planned.
    done = command(tmp_path, "run", "--gpu", "rtx-3060", "--memory", budget, "--steps", "3",
                   "--plan", "oomph-plan.toml", "--json", "again.json", "-q", "script.py")  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / "again.json").read_text())["peak"]
    assert again["used_bytes"] == pytest.approx(chosen["peak"]["used_bytes"], rel=0.01)
    # The page can be made again, plans and all.
    page = tmp_path / found.json["report"]
    written = page.read_bytes()
    page.unlink()
    assert command(tmp_path, "report", page.parent).returncode == 0
    assert page.read_bytes() == written


@pytest.mark.parametrize(
    "lever",
    [
        "checkpoint",
        "micro_batch",
        "mixed_precision",
        "optimizer_step",
    ],
)
def test_by_hand_needs_what_was_planned(tmp_path, plain, lever):
    script, memory = TRAIN, plain["used_bytes"] * 75 // 100
    if lever == "optimizer_step":
        script, memory = WIDE, "1.75GiB"
    found = fit(tmp_path, script, "--memory", memory, "--margin", "0%", "--allow", lever)
    assert found.status == 0, found.err + found.out
    assert found.levers == [lever]
    for check in (["git", "apply", "--check"], ["git", "apply"]):
        done = subprocess.run(
            [*check, "oomph-plan.patch"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    by_hand = peak(tmp_path, "script.py")
    assert by_hand["used_bytes"] == pytest.approx(found.chosen["peak"]["used_bytes"], rel=0.03)


def test_runs_that_are_in_each_others_way_blame_no_lever(tmp_path, plain, request):
    # Where there are two processors, the first two plans run side by side; this script cannot.
    # What it writes elsewhere would be each run's own.
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"))
    request.addfinalizer(lambda: shutil.rmtree(shared))
    alone = f"""
        import fcntl
        open("{shared}/starts", "a").write("x")
        lock = open("{shared}/lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    """
    budget = plain["used_bytes"] * 60 // 100
    code = textwrap.dedent(alone) + textwrap.dedent(TRAIN)
    found = fit(
        tmp_path,
        code,
        "--memory",
        budget,
        "--margin",
        "0%",
        "--allow",
        "checkpoint,offload_activations",
    )
    assert found.status == 0, found.err
    assert found.chosen["verified"]
    blamed = [
        why for why in found.json["rejected"] if "lock" in str(why) or "BlockingIOError" in str(why)
    ]
    assert not blamed
    assert "oomph.apply" in (tmp_path / "oomph-plan.apply.patch").read_text()
    # What failed beside another ran once more, which is not counted.
    again = len((shared / "starts").read_text()) - found.json["runs"]
    assert again == (1 if len(os.sched_getaffinity(0)) > 1 else 0)


def test_a_job_that_fits_is_left_alone(tmp_path):
    found = fit(tmp_path, TRAIN)
    assert found.status == 0 and found.json["outcome"] == "already_fits"
    assert not (tmp_path / "oomph-plan.toml").exists() and "fits as it is" in found.out


LEAK = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    for _ in range(500):
        optimizer.zero_grad()
        out = model(torch.randn(4096, 1024, device="cuda"))
        out.sum().backward()
        optimizer.step()
        history.append(out)
"""


def test_a_job_that_grows_is_none_that_fits(tmp_path):
    found = fit(tmp_path, LEAK, "--memory", "2GiB")
    assert found.status == 3 and "fits as it is" not in found.out, found.err
    growth = found.json["growth"]
    assert growth["bytes_per_step"] == 16 << 20 and growth["place"].endswith("script.py:8")
    # 128 steps leave 2 GiB behind; a step itself needs some.
    assert 100 < growth["full_at_step"] < 128
    assert f"runs out of memory near step {growth['full_at_step']}" in found.out


WRITTEN_ATTENTION = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
            return weights @ v

    model = nn.Sequential(*[Attention() for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(32, 1024, 64, device="cuda")).mean().backward()
        optimizer.step()
"""


def test_attention_of_the_script_itself_is_named(tmp_path):
    found = fit(tmp_path, WRITTEN_ATTENTION, "--memory", "600MiB", "--allow", "set_to_none")
    first = found.json["rejected"][0]
    assert first["lever"] == "attention", found.json["rejected"]
    assert "script.py:12" in first["why"] and "scaled_dot_product_attention" in first["why"]


def test_nothing_fits_says_what_would(tmp_path, plain):
    found = fit(tmp_path, TRAIN, "--memory", "600MiB", "--allow", "checkpoint")
    assert found.status == 3
    assert found.json["outcome"] == "nothing_fits" and found.json["chosen"] is None
    assert found.json["least"]["peak"]["used_bytes"] > 600 << 20
    assert found.json["held_by"]["parameters"] > 0
    prices = [gpu["usd_per_hour"] for gpu in found.json["gpus"] if gpu["as_it_is"]]
    assert prices and prices == sorted(prices)
    # A plan is named on GPUs that the job does not fit as it is.
    assert len({gpu["id"] for gpu in found.json["gpus"]}) == len(found.json["gpus"])
    # A plan of least memory is measured by one run; another one that promises less may follow.
    made = list(tmp_path.glob("oomph-report/script-1/plan-*/settings.json"))
    tried = [json.dumps(json.loads(run.read_text())["levers"]) for run in made]
    assert 1 <= len(tried) == len(set(tried)) <= 3
    least = found.json["least"]["peak"]["used_bytes"]
    assert f"{(least - found_budget(found)) / 2**30:.1f} GiB too much" in " ".join(
        found.out.split()
    )
    assert all(variant["used_bytes"] < least for variant in found.json["variants"])
    variants = [variant["what"].partition(",")[0] for variant in found.json["variants"]]
    # Not half as wide: the data goes into the first block as it is.
    assert variants == [
        "half the repeated blocks",
        "a quarter of the repeated blocks",
        "batches of 4096 instead of 16384",
    ]
    assert "least" in found.out and not (tmp_path / "oomph-plan.toml").exists()


EVALUATED = (
    TRAIN
    + """
        del loss
        model.eval()
        seen = model(torch.cat([x, x])).pow(2).mean()
        del seen
        model.train()
"""
)


def test_an_evaluation_with_a_graph_is_found_and_cured(tmp_path, plain):
    memory = int(plain["used_bytes"] * 1.4)
    found = fit(tmp_path, EVALUATED, "--memory", memory, "--margin", "0%")
    assert found.status == 0, found.err + found.out
    assert found.levers == ["no_grad_eval"] and found.chosen["same_results"] == "exact"


WRITTEN_OUT = TRAIN.replace("nn.GELU()", "NewGELU()").replace(
    "    class Block",
    """    class NewGELU(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    class Block""",
)


def test_what_is_written_out_becomes_one_kernel(tmp_path, plain):
    memory = int(plain["used_bytes"] * 1.02)
    options = ("--memory", memory, "--margin", "0%", "--forbid", "optimizer_step")
    found = fit(tmp_path, WRITTEN_OUT, *options)
    assert found.status == 0, found.err + found.out
    assert found.levers == ["fused_modules"]
    assert found.chosen["time_ratio"] < 1.0


def test_tf32_buys_time_back(tmp_path, plain):
    memory = plain["used_bytes"] * 8 // 10
    options = ("--memory", memory, "--margin", "0%", "--allow", "checkpoint", "--allow", "tf32")
    quick = fit(tmp_path, TRAIN, *options, gpu="a100-80gb")
    chosen = quick.json["plans"][0]
    assert [lever["name"] for lever in chosen["levers"]] == ["tf32", "checkpoint"]
    assert chosen["same_results"] == "numerics" and chosen["time_ratio"] < 1.0
    kept = fit(tmp_path, TRAIN, *options, "--keep-results", gpu="a100-80gb")
    assert kept.levers == ["checkpoint"] and kept.chosen["time_ratio"] > 1.0


def test_the_largest_batch_is_the_largest(tmp_path, plain):
    found = fit(
        tmp_path, TRAIN, "--memory", plain["used_bytes"] // 2, "--margin", "0%", "--max-batch"
    )
    largest = found.json["largest"][0]
    assert largest["now"] == 16384
    assert 4096 < largest["plain"] < 9000
    assert largest["plain_used_bytes"] <= plain["used_bytes"] // 2
    assert largest["with_levers"] > largest["plain"]


BATCH_NORM = TRAIN.replace("nn.GELU()", "nn.BatchNorm1d(4096), nn.GELU()")
NO_LOADER = TRAIN.replace(
    "data = DataLoader(TensorDataset(torch.zeros(1, 1024).expand(16384 * 4, 1024)), batch_size=16384)",
    "data = [(torch.randn(16384, 1024),) for _ in range(4)]",
)
CLIPPED = TRAIN.replace(
    "optimizer.step()",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()",
)
CLOSURE = """
        def closure():
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss
        optimizer.step(closure)
"""
CLOSURE = TRAIN.split("        loss = model(x)")[0] + CLOSURE
TWICE = TRAIN.replace("model(x).pow(2).mean()", "(model(x) - model(x * 2)).pow(2).mean()")
FROZEN = TRAIN.replace(
    "optimizer = ",
    "for p in model.blocks[:3].parameters():\n        p.requires_grad_(False)\n    optimizer = ",
)
TWO = TRAIN.replace("optimizer.step()", "optimizer.step()\n        other.step()").replace(
    "optimizer = torch.optim.AdamW(model.parameters())",
    "optimizer = torch.optim.AdamW(model.blocks[:3].parameters())\n"
    "    other = torch.optim.SGD(model.blocks[3:].parameters(), lr=0.1)",
)
SUM = TRAIN.replace(".mean()", ".sum()")


@pytest.mark.parametrize(
    ("code", "left_out", "why"),
    [
        (BATCH_NORM, "micro_batch", "batch normalization"),
        (NO_LOADER, "micro_batch", "no DataLoader"),
        (CLIPPED, "step_in_backward", "clipped"),
        (CLOSURE, "micro_batch", "closure"),
        (TWO, "step_in_backward", "several optimizers"),
        (TWICE, None, None),
        (FROZEN, None, None),
        (SUM, None, None),
    ],
    ids=["batch norm", "no loader", "clipped", "closure", "two optimizers", "twice", "frozen", "sum"],
)  # fmt: skip
def test_unusual_scripts_fit_or_are_refused_by_name(tmp_path, code, left_out, why):
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    budget = peak(tmp_path, "script.py")["used_bytes"] * 3 // 4
    found = fit(tmp_path, code, "--memory", budget, "--margin", "0%", "--keep-results")
    assert found.status == 0, found.err + found.out
    assert found.chosen["verified"] and found.chosen["peak"]["used_bytes"] <= budget
    if left_out:
        assert left_out not in found.levers
        reasons = {r["lever"]: r["why"] for r in found.json["rejected"]}
        assert why in reasons[left_out], reasons


USED_TWICE = """
    import torch
    from torch import nn
    net, head = (nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).cuda() for _ in "ab")
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        a, b = torch.randn(2, 8, 2048, device="cuda")
        head(net(a) - net(b)).pow(2).mean().backward()
        optimizer.step()
"""


def test_a_step_in_backward_waits_for_all_uses_of_a_parameter(tmp_path):
    """Gradients of the first use wait for those of the second, and are not promised away."""
    found = fit(tmp_path, USED_TWICE, "--memory", "600MiB", "--allow", "step_in_backward")
    least = found.json["least"]
    assert found.status == 3 and [lever["name"] for lever in least["levers"]] == [
        "step_in_backward"
    ]
    assert 0.97 < least["predicted"]["allocated_bytes"] / least["peak"]["allocated_bytes"] < 1.03
    assert least["notes"] == []


CLIPPED_WIDE = """
    import torch
    from torch import nn
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 2048, device="cuda")).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""


def test_clipped_gradients_are_planned_on_the_host(tmp_path):
    found = fit(tmp_path, CLIPPED_WIDE, "--memory", "450MiB", "--allow", "gradients_on_cpu")
    least = found.json["least"]
    assert found.status == 3 and [lever["name"] for lever in least["levers"]] == [
        "gradients_on_cpu"
    ]
    assert 0.97 < least["predicted"]["allocated_bytes"] / least["peak"]["allocated_bytes"] < 1.03
    assert least["notes"] == []


EVALUATED_FIRST = TRAIN.replace(
    "    for (x,) in data:",
    """
    def head(x):
        return torch.cat([model(x), model(x)], 1).repeat(1, 8).softmax(-1).sum()
    with torch.no_grad():
        head(torch.randn(16384, 1024, device="cuda"))
    for (x,) in data:""",
    1,
)


def test_an_evaluation_before_the_first_step_is_a_floor(tmp_path):
    """What it needs is predicted, and said to be what no lever changes."""
    (tmp_path / "script.py").write_text(textwrap.dedent(EVALUATED_FIRST))
    found = fit(tmp_path, EVALUATED_FIRST, "--memory", "1500MiB", "--allow", "micro_batch")
    least = found.json["least"]
    assert found.status == 3 and least["levers"]
    assert any("evaluation before the first step" in note for note in least["notes"])
    assert 0.97 < least["predicted"]["allocated_bytes"] / least["peak"]["allocated_bytes"] < 1.03


ROLLED_OUT = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(16384, 256), nn.Linear(256, 16384)

        def forward(self, ids):
            return self.head(self.embed(ids).relu())

    model = Policy().cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def log_probabilities(ids):
        return F.log_softmax(model(ids).float(), -1).gather(-1, ids[..., None])

    ids = torch.randint(0, 16384, (8, 1024), device="cuda")
    with torch.no_grad():
        old = log_probabilities(ids)
    for _ in range(4):
        loss = -(log_probabilities(ids[:2]) - old[:2]).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_what_a_lever_does_to_an_evaluation_before_the_first_step_is_learned_from_its_run(tmp_path):
    """A rollout's logits are as large as those of all steps; with them in parts, what else holds memory has its levers."""
    (tmp_path / "script.py").write_text(textwrap.dedent(ROLLED_OUT))
    plain = peak(tmp_path, "script.py")
    budget = plain["used_bytes"] - plain["reserved_bytes"] + (180 << 20)
    found = fit(tmp_path, ROLLED_OUT, "--memory", budget, "--margin", "0%", "--keep-results")
    assert found.status == 0, found.err
    assert found.chosen["verified"] and found.chosen["peak"]["used_bytes"] <= budget
    names = {lever["name"] for lever in found.chosen["levers"]}
    assert {"chunked_cross_entropy", "optimizer_on_cpu"} <= names


LIGHTNING = """
    import lightning, torch, warnings
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    warnings.filterwarnings("ignore")
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)))
        def training_step(self, batch, index):
            return self.net(batch[0]).pow(2).mean()
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())
    data = DataLoader(TensorDataset(torch.randn(8192 * 4, 1024)), batch_size=8192)
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Task(), data)
"""


def test_lightnings_closure_is_the_job_and_not_the_optimizers_step(tmp_path):
    pytest.importorskip("lightning")
    (tmp_path / "script.py").write_text(textwrap.dedent(LIGHTNING))
    used = peak(tmp_path, "script.py")["used_bytes"]
    budget = used * 3 // 4
    found = fit(tmp_path, LIGHTNING, "--memory", budget, "--margin", "0%", "--allow", "micro_batch")
    assert found.status == 0, found.err + found.out
    assert found.levers == ["micro_batch"]
    predicted = found.chosen["predicted"]["used_bytes"]
    assert 0.9 < predicted / found.chosen["peak"]["used_bytes"] < 1.1


# Each join leaves a hole in which the next does not fit: without a limit all of them stay reserved.
JOINED = """
    import torch
    from torch import nn

    net = nn.Linear(64, 256).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        found = torch.empty(0, 256, device="cuda")
        for _ in range(30):
            found = torch.cat([found, net(torch.randn(16000, 64, device="cuda")).detach()])
        (net(torch.randn(64, 64, device="cuda")).mean() + found.mean()).backward()
        optimizer.step()
"""


def test_what_is_only_cached_without_a_limit_is_not_needed(tmp_path):
    roomy = fit(tmp_path, JOINED, "--memory", "2.2GiB", "--allow", "set_to_none")
    assert roomy.json["outcome"] == "already_fits", roomy.out
    assert roomy.json["plain"]["used_bytes"] < 2.2 * 2**30
    tight = fit(tmp_path, JOINED, "--memory", "0.9GiB", "--allow", "set_to_none")
    assert tight.json["outcome"] == "nothing_fits", tight.out
    # Without a limit more than 7 GiB are reserved.
    assert 0.9 * 2**30 < tight.json["plain"]["used_bytes"] < 2.2 * 2**30


def test_the_scripts_own_failure_is_status_1(tmp_path):
    found = fit(tmp_path, "import torch\nraise ValueError('mine')\n")
    assert found.status == 1 and "ValueError: mine" in found.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["script.py"], "name the GPU"),
        (["--gpu", "t4"], "no script was given"),
        (["--gpu", "t4", "missing.py"], "no such file"),
        (["--gpu", "t4", "torchrun", "x.py"], "starts processes of its own"),
        (["--gpu", "t4", "--forbid", "magic", "script.py"], "there is no lever magic"),
        (["--gpu", "t4", "--margin", "120%", "script.py"], "--margin 120%"),
        (["--gpu", "t4", "--margin", "99GiB", "script.py"], "leaves nothing of the GPU's memory"),
    ],
)
def test_wrong_usage_is_status_2(tmp_path, words, expected):
    (tmp_path / "script.py").write_text("import torch\n")
    done = command(tmp_path, "fit", *words)
    assert done.returncode == 2 and expected in done.stderr, done.stderr


TIED = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    words = nn.Embedding(30000, 512)
    head = nn.Linear(512, 30000, bias=False)
    head.weight = words.weight
    model = nn.Sequential(words, nn.Linear(512, 512), nn.GELU(), head).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x in DataLoader(torch.randint(30000, (64, 512)), batch_size=16):
        x = x.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(x)
        nn.functional.cross_entropy(logits.float().flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


LONG = """
    import torch
    from torch import nn
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(256)
            self.mlp = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256))
        def forward(self, x):
            return x + self.mlp(self.norm(x + x.flip(1)))
    model = nn.Sequential(*(Block() for _ in range(2)), nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(4):
        model(torch.randn(1, 32768, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FROZEN = """
    import torch
    from torch import nn
    base = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16))).requires_grad_(False)
    model = nn.Sequential(nn.Linear(2048, 2048), base, nn.Linear(2048, 8)).cuda()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
    for step in range(4):
        model(torch.randn(256, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("code", "lever", "memory"),
    [
        (TIED, "micro_batch", "2GiB"),
        (WIDE, "optimizer_on_cpu", "1.1GiB"),
        (LONG, "chunked_modules", "1.2GiB"),
        (FROZEN, "int8_frozen", "0.4GiB"),
    ],
)
def test_the_first_prediction_is_close(tmp_path, code, lever, memory):
    """A loss outside of modules, casts of another module's weight; the state that is under way."""
    found = fit(tmp_path, code, "--memory", memory, "--allow", lever)
    assert found.status == 0 and found.levers == [lever], found.err + found.out
    predicted, peak = (found.chosen[name]["allocated_bytes"] for name in ("predicted", "peak"))
    assert abs(predicted - peak) <= 0.02 * peak


@pytest.mark.parametrize(
    ("choice", "results"),
    [
        ("exact", "exact"),
        ("fastest", "numerics"),
        ("least-memory", None),
    ],
)
def test_another_plan_can_be_chosen(tmp_path, plain, choice, results):
    """It is verified, and first in what was asked for."""
    memory = int(plain["used_bytes"] * 0.8)
    found = fit(
        tmp_path, TRAIN, "--memory", memory, "--choose", choice,
        "--allow", "micro_batch,checkpoint,mixed_precision",
    )  # fmt: skip
    assert found.status == 0 and found.chosen["verified"], found.err + found.out
    if results is not None:
        assert found.chosen["same_results"] == results
    key = (
        (lambda plan: plan["peak"]["used_bytes"])
        if choice == "least-memory"
        else (lambda plan: plan["time_ratio"])
    )
    rivals = [
        plan
        for plan in found.json["plans"]
        if plan["verified"] and (choice != "exact" or plan["same_results"] == "exact")
    ]
    assert key(found.chosen) == min(map(key, rivals))


# Two backward passes in a step, each with its own copies of the weights by autocast.
ACCUMULATED = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))

        def forward(self, x):
            return x + self.mlp(x)

    model = nn.Sequential(*(Block() for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        for part in range(2):
            x = torch.randn(8192, 512, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).pow(2).mean() / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_step_of_several_backward_passes_is_predicted(tmp_path):
    """The second forward pass comes after a backward pass, and not all of it waits for another."""
    found = fit(tmp_path, ACCUMULATED, "--memory", "800MiB", "--allow", "checkpoint")
    assert found.status == 0, found.out + found.err
    assert found.levers == ["checkpoint"]
    # Nobody wanted micro-batches, so nothing explains why there are none.
    assert not found.json["rejected"]
    chosen = found.chosen
    assert chosen["peak"]["allocated_bytes"] == pytest.approx(
        chosen["predicted"]["allocated_bytes"], rel=0.04
    )


# As in torchvision's networks: one activation, in place, that every layer uses.
IN_PLACE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))
            self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(6))
            self.relu = nn.ReLU(inplace=True)
            self.head = nn.Conv2d(32, 1, 1)

        def forward(self, x):
            for conv, norm in zip(self.convs, self.norms):
                x = self.relu(norm(conv(x)))
            return self.head(x)

    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        x = torch.randn(16, 32, 128, 128, device="cuda")
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_normalizations_are_recomputed_with_the_activation_that_overwrites_them(tmp_path):
    """Without it, what the activation saved stays, and nothing is won."""
    found = fit(tmp_path, IN_PLACE, "--memory", "520MiB", "--allow", "recompute")
    assert found.status == 0, found.out + found.err
    assert "Net.relu" in found.chosen["levers"][0]["modules"]
    assert not found.chosen["notes"] and not found.json["rejected"]


# As in language models: many parameters are in one table.
TABLE = """
    import copy
    import torch
    from torch import nn
    layers = [nn.Linear(1024, 16384), nn.Linear(16384, 1024)] * 2
    model = nn.Sequential(nn.Embedding(50_000, 1024), *map(copy.deepcopy, layers)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(4):
        model(torch.zeros(4, 64, dtype=torch.long, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_state_on_the_cpu_counts_what_is_on_its_way(tmp_path):
    """The state of some rows of the table is on the GPU for their step, and that of others on its way, which takes time."""
    found = fit(tmp_path, TABLE, "--memory", "1500MiB", "--allow", "optimizer_on_cpu")
    assert found.status == 0, found.out + found.err
    # As it is and verified, for longer at once if steps are cheap beside the start.
    assert found.levers == ["optimizer_on_cpu"] and found.json["runs"] in (2, 3)
    chosen = found.chosen
    assert chosen["peak"]["allocated_bytes"] == pytest.approx(
        chosen["predicted"]["allocated_bytes"], rel=0.03
    )
    assert chosen["time_ratio"] > 1.5


CHAIN = """
    import torch
    from torch import nn

    x = torch.randn(1 << 18, 64, device="cuda")
    weight, table = nn.Parameter(torch.eye(64, device="cuda")), nn.Parameter(torch.zeros(1 << 25, device="cuda"))
    optimizer = torch.optim.AdamW([weight, table])
    for step in range(8):
        h = x
        for _ in range(24):
            h = (h @ weight).tanh()
        (h.mean() + table.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_plan_that_needs_far_too_much_is_run_for_one_step_only(tmp_path):
    """One lever takes the state, an eighth of the peak: its run shows that at once, and the other lever holds."""
    levers = ("--allow", "optimizer_on_cpu", "--allow", "save_on_cpu")
    found = fit(tmp_path, CHAIN, "--memory", "1500MiB", "--margin", "0%", *levers)
    assert found.status == 0, found.out + found.err
    assert "save_on_cpu" in found.levers
    runs = (tmp_path / found.json["report"]).parents[1]
    missed = json.loads((runs / "plan-1" / "record.json").read_text())
    assert [lever["name"] for lever in missed["levers"]] == ["optimizer_on_cpu"]
    assert (missed["steps"], missed["stopped"]) == (1, True)


WIDE_LAYERS = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        model(torch.randn(64, 2048, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_neither_gradients_nor_state_need_be_there_all_at_once(tmp_path):
    """Of 192 MiB of parameters, as much of gradients, and twice as much of state."""
    found = fit(tmp_path, WIDE_LAYERS, "--memory", "470MiB", "--margin", "0%", "--keep-results")
    assert found.status == 0, found.out + found.err
    assert {"step_in_backward", "optimizer_on_cpu"} <= set(found.levers)
    assert found.chosen["peak"]["allocated_bytes"] < 2 * 192 << 20


# As of Shampoo and its kin.
MATRICES = """
    import torch
    from torch import nn

    class Matrices(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                if not state:
                    state["left"] = [torch.eye(n, device=p.device) for n in p.shape]
                state["left"][0] = state["left"][0] + p.grad @ p.grad.T
                p.sub_(state["left"][0] @ p.grad @ state["left"][1], alpha=0.01)

    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(24)]).cuda()
    optimizer = Matrices(model.parameters())
    for step in range(4):
        model(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_state_in_lists_goes_to_the_host(tmp_path):
    """Of 96 MiB of parameters there are 192 MiB of matrices, beside as many gradients."""
    memory = ("--memory", "430MiB", "--margin", "0%")
    found = fit(tmp_path, MATRICES, "--allow", "optimizer_on_cpu", *memory)
    assert found.status == 0 and found.levers == ["optimizer_on_cpu"], found.out + found.err
    assert found.chosen["peak"]["allocated_bytes"] < 250 << 20


SPARSE_TABLES = """
    import torch
    from torch import nn

    tables = nn.ModuleList(
        nn.EmbeddingBag(rows, 64, mode="sum", sparse=True) for rows in (900_000, 400_000)
    ).cuda()
    top = nn.Linear(128, 1).cuda()
    optimizers = [
        torch.optim.SparseAdam(list(tables.parameters())),
        torch.optim.Adagrad(top.parameters()),
    ]
    for step in range(4):
        ids = torch.randint(0, 400_000, (2048, 3), device="cuda")
        loss = top(torch.cat([table(ids) + table(ids.flip(0)) for table in tables], 1)).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
"""


def test_state_of_sparse_gradients_stays_on_the_cpu(tmp_path):
    """Of 317 MiB of tables and twice as much of state."""
    found = fit(tmp_path, SPARSE_TABLES, "--memory", "800MiB", "--margin", "0%")
    assert found.status == 0, found.out + found.err
    assert "optimizer_on_cpu" in found.levers
    assert found.json["plain"]["used_bytes"] > 1000 << 20
    tables = (900_000 + 400_000) * 64 * 4
    assert found.chosen["peak"]["allocated_bytes"] < tables + (60 << 20)
    assert found.chosen["peak"]["allocated_bytes"] == pytest.approx(
        found.chosen["predicted"]["allocated_bytes"], rel=0.06
    )


COMPILED = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(256, 2048), nn.Linear(2048, 256)

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(x)))

    model = torch.compile(nn.Sequential(*[Block() for _ in range(3)]).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.randn(16384, 256, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_compiled_models_keep_less_for_the_backward_pass(tmp_path):
    found = fit(
        tmp_path, COMPILED, "--memory", "1150MiB", "--allow", "activation_memory_budget",
    )  # fmt: skip
    assert found.status == 0, found.out + found.err
    assert found.levers == ["activation_memory_budget"]
    assert found.chosen["verified"] and found.chosen["same_results"] == "rounding"
    # Each block keeps one tensor that is as wide as its first layer, or none.
    wide = 16384 * 2048 * 4
    assert found.chosen["peak"]["allocated_bytes"] < found.json["plain"]["allocated_bytes"] - wide
    assert "activation_memory_budget = 0." in (tmp_path / "oomph-plan.patch").read_text()


def test_compiled_models_that_cannot_keep_less_run_without_compilation(tmp_path):
    """The blocks are then taken apart like any others."""
    found = fit(
        tmp_path, COMPILED, "--memory", "900MiB", "--allow", "uncompiled,checkpoint,recompute",
    )  # fmt: skip
    assert found.status == 0, found.out + found.err
    assert "uncompiled" in found.levers and len(found.levers) > 1
    assert found.chosen["verified"] and found.chosen["same_results"] == "rounding"
    assert found.chosen["peak"]["used_bytes"] < 900 << 20


# As U-Nets are written: each block is an attribute.
ATTRIBUTES = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))

        def forward(self, x):
            return x + self.mlp(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.up1, self.up2 = Block(), Block(), Block(), Block()

        def forward(self, x):
            return self.up2(self.up1(self.down2(self.down1(x))))

    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        model(torch.randn(8192, 512, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_blocks_that_are_attributes_are_checkpointed(tmp_path):
    found = fit(tmp_path, ATTRIBUTES, "--memory", "650MiB", "--allow", "checkpoint")
    assert found.status == 0, found.out + found.err
    (lever,) = found.chosen["levers"]
    # The block, or what is in it, which is a block as well.
    assert lever["name"] == "checkpoint" and {"Net.down1", "Net.down1.mlp"} & set(lever["modules"])
