"""Where a step of a job ends that has several optimizers, or none."""

import json

import pytest

TWO = """
    import torch
    from torch import nn
    class Generator(nn.Sequential): pass
    class Critic(nn.Sequential): pass
    g = Generator(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    d = Critic(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    a, b = (torch.optim.Adam(model.parameters()) for model in (d, g))
    for i in range(4):
        fake = g(torch.randn(256, 64, device="cuda"))
        a.zero_grad()
        (d(fake.detach()).mean() - d(torch.randn(256, 64, device="cuda")).mean()).backward()
        a.step()
        if i % EVERY == EVERY - 1:
            b.zero_grad()
            (-d(fake).mean()).backward()
            b.step()
"""


@pytest.mark.parametrize(("every", "steps"), [(1, 4), (2, 4)])
def test_the_last_optimizer_of_a_round_ends_the_step(oomph, tmp_path, every, steps):
    """The generator's graph is made before the critic's step, and used after it. Of a critic that steps several times before,
    each step is one; its first was not counted."""
    found = oomph(TWO.replace("EVERY", str(every)), gpu="t4")
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert written["steps"] == steps == len([b for b in written["boundaries"] if b[1] == "step"])
    if every == 1:
        seen = {
            (phase, module.split(".")[0])
            for phase, module, _, step in written["scopes"]
            if step == 1
        }
        assert {(p, m) for p in ("forward", "backward") for m in ("Generator", "Critic")} <= seen


WEIGHTS = """
    import torch
    torch.manual_seed(0)
    weights = [torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(3)]
    def loss(weights):
        x = torch.randn(64, 256, device="cuda")
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x.square().mean()
    total = torch.zeros((), device="cuda")
    for i in range(4):
"""
IN_PLACE = {
    "no_grad": """
        loss(weights).backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
""",
    "data": """
        loss(weights).backward()
        for weight in weights:
            weight.data.add_(weight.grad, alpha=-0.1)
            weight.grad.zero_()
""",
    "foreach, of three batches": """
        for _ in range(3):
            found = loss(weights)
            found.backward()
            total.add_(found.detach())
        with torch.no_grad():
            torch._foreach_add_(weights, [weight.grad for weight in weights], alpha=-0.1)
        for weight in weights:
            weight.grad = None
""",
    "asked for": """
        given = torch.autograd.grad(loss(weights), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, given):
                weight.sub_(gradient, alpha=0.1)
""",
}
REPLACED = {
    "functional": """
        given = torch.autograd.grad(loss(weights), weights)
        weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, given)]
""",
    "torch.func": """
        given = torch.func.grad(loss)([w.detach() for w in weights])
        weights = [(w - 0.1 * g).detach() for w, g in zip(weights, given)]
""",
    "data": """
        loss(weights).backward()
        for weight in weights:
            weight.data = weight.data - 0.1 * weight.grad
            weight.grad = None
""",
}
KEPT = """
        kept = [] if i == 0 else kept
        kept += weights
"""
REPLACED |= {
    f"{name}, those before are kept": KEPT + REPLACED[name] for name in ("functional", "torch.func")
}
REPLACED["backward"] = """
        loss(weights).backward()
        weights = [(w.detach() - 0.1 * w.grad).requires_grad_() for w in weights]
"""
BY_HAND = [*IN_PLACE.values(), *REPLACED.values()]


@pytest.mark.parametrize("update", BY_HAND, ids=[*IN_PLACE, *[f"new, {name}" for name in REPLACED]])
def test_an_update_by_hand_ends_a_step(oomph, tmp_path, update):
    """It is the step's last phase, and the next operator that needs gradients is the next step's."""
    found = oomph(WEIGHTS + update, gpu="t4")
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (written["steps"], written["inferences"]) == (4, 0)
    for step in (1, 2):
        phases = {(phase, operator) for phase, _, operator, of in written["scopes"] if of == step}
        assert ("forward", "aten::tanh") in phases
        assert any(phase == "backward" for phase, _ in phases)
        assert ("optimizer", "aten::mul") in phases or any(
            phase == "optimizer" and operator.removesuffix("_").endswith(("add", "sub"))
            for phase, operator in phases
        )
    assert found.json["trains"] and "4 steps in" in found.out


@pytest.mark.parametrize(
    "update",
    [
        """
                found = loss(network)
                found.backward()
                with torch.no_grad():
                    for weight in network:
                        weight -= 0.1 * weight.grad
                        weight.grad = None
        """,
        """
                given = torch.autograd.grad(loss(network), network)
                network[:] = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(network, given)]
        """,
    ],
    ids=["in place", "new"],
)
def test_the_last_network_of_a_round_ends_the_step(oomph, tmp_path, update):
    """Four networks that a script changes by hand in turn: the first ends a step as long as no other is known."""
    code = (
        WEIGHTS.replace("range(4)", "range(5)")
        .replace("    total =", "    widths = (64, 96, 128, 160)\n    total =")
        .replace(
            "    for i in",
            "    networks = [[torch.randn(256, n, device='cuda', requires_grad=True)] for n in widths]\n    for i in",
        )
    )
    found = oomph(code + "        for network in networks:" + update, gpu="t4")
    assert found.status == 0, found.err
    assert json.loads((tmp_path / "run" / "record.json").read_text())["steps"] == 5


def test_passes_on_the_cpu_are_none_of_the_first(oomph, tmp_path):
    """The weights of the GPU are found all the same, which the first passes that have some tell."""
    on_the_cpu = """
        held = torch.zeros(1, device="cuda")
        own = torch.randn(8, requires_grad=True)
        for _ in range(8):
            own.square().sum().backward()
"""
    code = WEIGHTS.replace("    total =", on_the_cpu.replace("\n    ", "\n") + "    total =")
    found = oomph(code + IN_PLACE["no_grad"], gpu="t4")
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (written["steps"], written["inferences"]) == (4, 0)


def test_steps_by_hand_end_a_run_after_as_many_as_were_asked_for(oomph, tmp_path):
    found = oomph(WEIGHTS + IN_PLACE["no_grad"], "--steps", "2", gpu="t4")
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert written["steps"] == 2 and written["stopped"]


@pytest.mark.parametrize("steps", ["2", "5"])
def test_an_update_in_hooks_of_the_backward_pass_ends_a_step(oomph, tmp_path, steps):
    """The gradients are gone when the pass is over, and no optimizer has seen them; a pass that only adds up is none."""
    found = oomph("""
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).cuda()
        passes = 0

        @torch.no_grad()
        def update(weight):
            if passes % 2 == 0:
                weight.sub_(0.1 * weight.grad)
                weight.grad = None

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(update)
        for _ in range(12):
            passes += 1
            model(torch.randn(8, 64, device="cuda")).mean().backward()
    """, "--steps", steps, gpu="t4")  # fmt: skip
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (written["steps"], written["stopped"]) == (int(steps), True)
    assert found.json["trains"]


@pytest.mark.parametrize(
    "derives",
    [
        "x = x - 0.1 * torch.autograd.grad(model(x).sum(), x)[0]",
        "x = x - 0.1 * torch.func.grad(lambda x: model(x).sum())(x)",
        "model(x).sum().backward(); x.grad.abs_(); model.zero_grad()",
    ],
    ids=["forces", "functional forces", "saliency"],
)
def test_gradients_of_what_is_no_weight_are_no_step(oomph, tmp_path, derives):
    found = oomph(
        f"""
        import torch
        from torch import nn
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
        x = torch.randn(16, 256, device="cuda")
        for i in range(4):
            x = x.detach().requires_grad_()
            {derives}
        """,
        gpu="t4",
    )
    assert found.status == 0, found.err
    assert json.loads((tmp_path / "run" / "record.json").read_text())["steps"] == 0


def test_gradients_of_two_arguments_in_turn_are_no_steps(oomph, tmp_path):
    """Each asks for others than the one before, and nothing changes."""
    code = """
        import torch
        weight, x = torch.randn(64, 32, device="cuda"), torch.randn(16, 64, device="cuda")
        def loss(weight, x):
            return torch.tanh(x @ weight).square().mean()
        for _ in range(4):
            of_weight, of_x = (torch.func.grad(loss, argument)(weight, x) for argument in (0, 1))
    """
    found = oomph(code, gpu="t4")
    assert found.status == 0, found.err
    assert json.loads((tmp_path / "run" / "record.json").read_text())["steps"] == 0
