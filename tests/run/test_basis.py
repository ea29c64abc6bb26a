"""What a verdict of `oomph run` rests on: the whole script, alike steps, or nothing yet."""

import pytest


def text(run):
    """What it printed, whatever its lines."""
    return " ".join(run.out.split())


TRAIN = """
    import torch
    from torch import nn
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    def step(size=64):
        optimizer.zero_grad()
        out = model(torch.randn(size, 1024, device="cuda"))
        out.sum().backward()
        optimizer.step()
        return out
"""
EVALUATES = (
    TRAIN
    + """
    other = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    for number in range(1000):
        step()
        if number % 2 == 0:
            with torch.no_grad():
                other(torch.randn(64, 1024, device="cuda"))
"""
)
MIB_16 = 16 << 20
LEAK = TRAIN + "    for i in range({steps}):\n        history.append(step(4096))\n"


def test_the_whole_script(oomph):
    run = oomph(TRAIN + "    step()\n")
    assert run.status == 0 and "fits: the whole script ran" in run.out
    assert run.json["basis"] == "whole_script" and not run.json["peak"]["lower_bound"]
    assert run.json["growth"] is None


def test_steps_are_no_passes_though_their_optimizer_needs_no_memory(oomph):
    plain = TRAIN.replace("Adam(model.parameters())", "SGD(model.parameters(), 0.1)")
    run = oomph(plain + "    for _ in range(3): step()\n")
    assert run.json["trains"] and " · 3 steps in " in text(run), run.out
    infers = TRAIN.replace("optimizer = torch.optim.Adam(model.parameters())", "")
    passes = oomph(infers + "    for _ in range(3): model(torch.randn(64, 1024, device='cuda'))\n")
    assert not passes.json["trains"] and " · 3 passes in " in text(passes), passes.out


def test_steps_that_became_alike(oomph):
    run = oomph(TRAIN + "    while True: step()\n", "--steps", "4")
    assert run.status == 0 and "if later steps are like the last of the 4 steps" in run.out
    assert run.json["basis"] == "steady_steps" and not run.json["peak"]["lower_bound"]


def test_steps_with_an_evaluation_between_them_are_alike(oomph):
    """No two neighbors are, however many steps are asked for."""
    run = oomph(EVALUATES, "--steps", "4")
    assert run.status == 0 and run.json["basis"] == "steady_steps", run.out


def test_one_step_is_no_verdict(oomph):
    run = oomph(TRAIN + "    while True: step()\n", "--steps", "1")
    assert run.status == 4 and run.json["verdict"] == "no_verdict"
    assert run.json["basis"] == "cut_short" and run.json["peak"]["lower_bound"]
    assert "no verdict: the script was ended before two steps were alike" in run.out
    assert "✓" not in run.out and "--steps 3" in run.out


def test_batches_that_differ_are_named(oomph):
    run = oomph(
        TRAIN + "    for size in (64, 8192, 64, 16384) * 10: step(size)\n", "--steps", "4", "-v"
    )
    assert run.status == 0 and "a larger one than those that were seen needs more" in text(run)
    same = oomph(TRAIN + "    while True: step()\n", "--steps", "4", "-v")
    assert "a larger one" not in same.out


@pytest.mark.parametrize(
    ("loop", "status"),
    [
        ("for i in range(5000): history.append(step(4096))", 3),
        ("for i in range(20): history.append(step(4096))", 0),
        ("while True: history.append(step(4096))", 0),
    ],
    ids=["long enough to fill it", "short", "no known length"],
)
def test_what_grows_is_part_of_the_verdict(oomph, loop, status):
    run = oomph(TRAIN + f"    {loop}\n", "--steps", "8")
    assert run.status == status, run.out
    growth = run.json["growth"]
    assert growth["bytes_per_step"] == MIB_16
    assert growth["place"].endswith("script.py:9")
    used = run.json["peak"]["used_bytes"]
    full = 8 + (run.json["gpu"]["usable_bytes"] - used) // growth["bytes_per_step"]
    assert abs(growth["full_at_step"] - full) <= 15
    assert f"full near step {growth['full_at_step']}" in text(run)
    assert run.json["verdict"] == ("out_of_memory" if status else "fits")


def test_the_step_that_is_named_is_the_one_that_fails(oomph):
    """The same script on a small GPU, whole."""
    run = oomph(LEAK.format(steps=60), "--memory", "600MiB", "--no-measure")
    assert run.status == 3
    predicted = oomph(
        LEAK.format(steps=60), "--memory", "600MiB", "--no-measure", "--steps", "8"
    ).json["growth"]["full_at_step"]
    assert abs(predicted - run.json["oom"]["step"]) <= 1


def test_what_grows_needs_no_certain_amount(oomph):
    run = oomph(LEAK.format(steps=60), "--memory", "600MiB")
    growth, oom = run.json["growth"], run.json["oom"]
    assert growth["bytes_per_step"] == MIB_16 and growth["full_at_step"] == oom["step"]
    assert run.json["peak"]["lower_bound"] and oom["short_bytes"] is None
    assert "16.0 MiB more with each step after it (script.py:9)" in text(run)
    assert "peak needed" not in run.out and "enough alone" not in run.out


def test_a_list_of_numbers_is_no_growth(oomph):
    run = oomph(TRAIN + "    while True: history.append(step(4096).sum().item())\n", "--steps", "8")
    assert run.status == 0 and run.json["growth"] is None


def test_a_run_without_a_limit_that_fails_gives_a_lower_bound(oomph):
    run = oomph(
        TRAIN
        + """
    kept = torch.empty(13 << 30, dtype=torch.uint8, device="cuda")
    raise RuntimeError("a shape is wrong")
    """
    )
    assert run.status == 3 and run.json["peak"]["lower_bound"]
    assert "at least 13" in text(run) and "failed: RuntimeError: a shape is wrong" in text(run)
    assert run.json["oom"]["unlimited_failure"].startswith("RuntimeError")
    assert run.json["oom"]["short_bytes"] is None


def test_an_error_of_the_backward_pass_that_is_caught_is_handled(oomph):
    run = oomph("""
    import torch
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    size = 1 << 17
    while size:
        try:
            model(torch.randn(size, 4096, device="cuda")).sum().backward()
            break
        except torch.OutOfMemoryError:
            size //= 2
    """)
    assert run.status == 0 and run.json["handled_oom_count"] >= 1, run.out


def test_attempts_of_pytorchs_own_are_not_the_scripts_errors(oomph):
    """Convolutions try one algorithm after the other until one has the memory that it wants."""
    run = oomph("""
    import torch
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)
    ).cuda()
    size = 4096
    while size:
        try:
            model(torch.randn(size, 3, 224, 224, device="cuda")).sum().backward()
            break
        except torch.OutOfMemoryError:
            print("too large")
            size //= 2
    """)
    assert run.status == 0 and run.out.count("too large") >= 3
    assert run.json["handled_oom_count"] == run.out.count("too large")


def test_models_made_with_weight_norm_have_run_no_pass(oomph):
    run = oomph(
        """
    import torch
    from torch import nn
    model = nn.ModuleList(
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(1024, 1024)) for _ in range(6)
    ).cuda()
    head = nn.Sequential(nn.Conv1d(4, 4, 3), nn.LazyLinear(7)).cuda()
    print("made")
    with torch.no_grad():
        for i in range(100):
            x = torch.randn(65536, 1024, device="cuda")
            for layer in model: x = layer(x)
            head(torch.randn(2, 4, 30, device="cuda"))
    """,
        "--steps", "9",
    )  # fmt: skip
    assert "made" in run.out and run.status in (0, 4), run.err
    assert run.json["peak"]["allocated_bytes"] > 65536 * 1024 * 4
    assert run.json["step_count"] == 9


def test_a_lazy_model(oomph):
    run = oomph("""
    import torch
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
    print(model(torch.randn(4, 3, 32, 32, device="cuda")).shape)
    """)
    assert run.status == 0 and "torch.Size([4, 10])" in run.out, run.err


def test_steps_within_compiled_code_are_an_assumption(oomph):
    run = oomph(
        """
    import torch
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    @torch.compile(backend="eager")
    def update():
        optimizer.step()
    for _ in range(3):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        update()
    print("through")
    """,
        "-v",
    )
    assert run.status == 0 and "through" in run.out, run.err
    assert any("its steps are not counted" in found["what"] for found in run.json["assumptions"])


def test_a_compiled_module_warns_of_no_hooks(oomph):
    """Those that watch modules are gone when it is called."""
    run = oomph("""
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(4, 64, device="cuda")).sum().backward()
    print("through")
    """)
    assert run.status == 0 and "through" in run.out, run.err
    assert "global hooks" not in run.out + run.err


def test_what_a_run_without_a_limit_caches_is_not_needed(oomph):
    run = oomph(
        """
    import torch
    kept = torch.empty(0, device="cuda")
    for i in range(60):
        kept = torch.cat([kept, torch.randn(1 << 21, device="cuda")])
    """,
        "--memory",
        "600MiB",
    )
    # The old one, the new one and what is joined to it: 960 MiB, where each of the older ones would be cached without a limit.
    peak = run.json["peak"]
    assert 960 << 20 <= peak["reserved_bytes"] <= 1000 << 20, peak
    assert run.json["oom"]["short_bytes"] == peak["used_bytes"] - (600 << 20)
    assert any(one["kind"] == "cache" for one in run.json["assumptions"])
