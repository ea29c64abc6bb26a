"""`step_in_backward`, `gradients_on_cpu`, `optimizer_8bit`, `optimizer_on_cpu`."""

import json

import pytest

from tests.support.levers import distance, run, same

SETUP = """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.GELU(), nn.Linear(128, 64))
    x = torch.randn(5, 16, 64)
"""

LOOP = """
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for part in x:
        optimizer.zero_grad()
        loss = model(part).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    out = [losses, [p.detach() for p in model.parameters()]]
"""

OPTIMIZERS = [
    "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "torch.optim.AdamW(model.parameters(), lr=0.01)",
    "torch.optim.AdamW([dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.3),"
    " dict(params=[p for p in model.parameters() if p.dim() == 1], lr=0.1)], lr=0.01)",
    "torch.optim.RMSprop(model.parameters())",
    "torch.optim.Adafactor(model.parameters())",
    "torch.optim.NAdam(model.parameters())",
]

ANYWHERE = """
    from oomph.levers import optimizer_on_cpu as lever
    from oomph.levers._shared import parameter_steps
    parameter_steps.AT_ONCE = 4096
"""


@pytest.mark.parametrize(
    "levers",
    [["step_in_backward"], ["optimizer_on_cpu"], ["step_in_backward", "optimizer_on_cpu"]],
    ids="-and-".join,
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_the_same(tmp_path, optimizer, levers):
    code = SETUP + ANYWHERE + f"\n    optimizer = {optimizer}\n" + LOOP
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, *[(lever, {}) for lever in levers])
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    if "step_in_backward" in levers:
        assert changed.levers["step_in_backward"]["applied"] == 5 * 4


@pytest.mark.parametrize(
    "others",
    [["step_in_backward"], ["optimizer_on_cpu"], ["step_in_backward", "optimizer_on_cpu"]],
    ids="-and-".join,
)
def test_fused_steps_go_with_the_others(tmp_path, others):
    code = SETUP + ANYWHERE + f"\n    optimizer = {OPTIMIZERS[1]}\n" + LOOP
    fused = ("optimizer_step", {"kind": "fused"})
    changed = run(tmp_path, code, fused, *[(lever, {}) for lever in others])
    assert changed.refusal is None, changed.refusal
    assert changed.levers["optimizer_step"]["applied"] == 1
    assert distance(changed.out, run(tmp_path, code).out) < 1e-6


def test_a_fused_step_leaves_unscaling_to_the_scaler(tmp_path):
    """Lightning refuses to clip where an optimizer says that its step unscales gradients."""
    code = (
        SETUP
        + f"\n    optimizer = {OPTIMIZERS[1]}\n"
        + """
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for part in x:
        optimizer.zero_grad()
        scaler.scale(model(part).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    out = [p.detach() for p in model.parameters()]
    """
    )
    changed = run(tmp_path, code, ("optimizer_step", {"kind": "fused"}))
    assert changed.levers["optimizer_step"]["applied"] == 1
    assert distance(changed.out, run(tmp_path, code).out) < 1e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_large_parameters_step_in_rows(tmp_path, optimizer):
    """No part is larger than asked for, where elements update by themselves; the state is saved whole."""
    code = (
        SETUP
        + ANYWHERE
        + """
    most = [0]
    own = lever._State.step
    def step(state):
        most[0] = max(most[0], sum(p.nbytes for p in state.part))
        own(state)
    lever._State.step = step
    own_slice = lever._Slice.step
    def step_slice(state):
        most[0] = max(most[0], state.some.nbytes)
        own_slice(state)
    lever._Slice.step = step_slice
    """
        + f"\n    optimizer = {optimizer}\n"
        + LOOP
        + """
    out.append([{k: v for k, v in s.items()} for s in optimizer.state_dict()["state"].values()])
    out = [most[0], out]
    """
    )
    (_, plain), (most, changed) = (
        run(tmp_path, code, *levers).out for levers in ([], [("optimizer_on_cpu", {})])
    )
    assert same(changed, plain)
    assert most == (4 * 64 * 128 if "Adafactor" in optimizer else 4096)


def test_a_transposed_weight_steps_whole(tmp_path):
    """Its rows lie apart, which a fused step refuses."""
    code = (
        SETUP
        + ANYWHERE
        + """
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data.T.contiguous().T if p.dim() == 2 else p.data
    """
        + "\n    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)\n"
        + LOOP
    )
    changed = run(tmp_path, code, ("optimizer_on_cpu", {}))
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, run(tmp_path, code).out)


SPARSE = """
    torch.manual_seed(1)
    tables = nn.ModuleList([nn.EmbeddingBag(50, 6, mode="sum", sparse=True) for _ in range(2)])
    tables.append(nn.EmbeddingBag(7, 6, mode="sum", sparse=True))  # all rows, often
    top = nn.Linear(18, 3)
    def model(ids):
        return top(torch.cat([table(ids % table.num_embeddings) for table in tables], 1))
    draw = torch.Generator().manual_seed(2)
    x = [torch.randint(0, 50, (9, 3), generator=draw) for _ in range(5)]
    {optimizers}
    losses = []
    for ids in x:
        for one in optimizers: one.zero_grad()
        loss = model(ids).pow(2).mean()
        loss.backward()
        if len(losses) == 3: tables[0].weight.grad *= 0
        if len(losses) == 4: tables[0].weight.grad = torch.sparse_coo_tensor(size=(50, 6))
        for one in optimizers: one.step()
        losses.append(loss.detach())
    out = [losses, [p.detach() for m in (tables, top) for p in m.parameters()]]
    for one in optimizers:
        saved = one.state_dict()
        # Momentum of sparse gradients is sparse itself.
        dense = lambda v: v.to_dense() if getattr(v, "is_sparse", False) else v
        out.append({p: {k: dense(v) for k, v in s.items()} for p, s in saved["state"].items()})
"""

ROW_WISE = {
    "SparseAdam": "torch.optim.SparseAdam(list(tables.parameters()), lr=0.1)",
    "SparseAdam, maximize": "torch.optim.SparseAdam(list(tables.parameters()), lr=0.1, maximize=True)",
    "Adagrad": "torch.optim.Adagrad(tables.parameters(), lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5)",
    "SGD": "torch.optim.SGD(tables.parameters(), lr=0.1)",
    "SGD with momentum": "torch.optim.SGD(tables.parameters(), lr=0.1, momentum=0.9)",
}


@pytest.mark.parametrize("optimizer", ROW_WISE)
def test_rows_of_sparse_gradients_step_the_same(tmp_path, optimizer):
    """Beside a second optimizer, with dense gradients; the whole state is saved."""
    made = f"optimizers = [{ROW_WISE[optimizer]}, torch.optim.Adagrad(top.parameters(), lr=0.1)]"
    code = SPARSE.replace("{optimizers}", made)
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("optimizer_on_cpu", {}))
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)


def test_one_optimizer_has_sparse_and_dense_gradients(tmp_path):
    made = "optimizers = [torch.optim.Adagrad([*top.parameters(), *tables.parameters()], lr=0.1)]"
    code = SPARSE.replace("{optimizers}", made)
    assert same(run(tmp_path, code, ("optimizer_on_cpu", {})).out, run(tmp_path, code).out)


def test_only_rows_of_the_gradient_reach_the_optimizer(tmp_path):
    code = (
        SPARSE.replace("{optimizers}", f"optimizers = [{ROW_WISE['SparseAdam']}]")
        + """
    seen = []
    own = torch.optim._functional.sparse_adam
    def watched(params, grads, *args, **kwargs):
        seen.append([len(p) for p in params])
        return own(params, grads, *args, **kwargs)
    torch.optim._functional.sparse_adam = watched
    for one in optimizers: one.zero_grad()
    model(torch.tensor([[1, 1, 2]])).sum().backward()
    for one in optimizers: one.step()
    out = seen
    """
    )
    assert run(tmp_path, code).out == [[50, 50, 7]]
    assert run(tmp_path, code, ("optimizer_on_cpu", {})).out == [[2], [2], [2]]


def test_gradients_are_gone_after_backward(tmp_path):
    code = (
        SETUP
        + """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x[0]).sum().backward()
    out = [p.grad for p in model.parameters()]
    optimizer.step()
    """
    )
    assert run(tmp_path, code, ("step_in_backward", {})).out == [None] * 4


REFUSED = {
    "clip": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x[0]).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    "accumulates": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in x[:2]:
        model(part).sum().backward()
    optimizer.step()
    """,
    "GradScaler": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(x[0]).sum()).backward()
    scaler.step(optimizer)
    """,
    "several optimizers": """
    a = torch.optim.SGD(model[0].parameters(), lr=0.1)
    b = torch.optim.SGD(model[3].parameters(), lr=0.1)
    """,
    "LBFGS": """
    optimizer = torch.optim.LBFGS(model.parameters())
    """,
}


@pytest.mark.parametrize("why", REFUSED)
def test_step_in_backward_refuses_by_name(tmp_path, why):
    refusal = run(tmp_path, SETUP + REFUSED[why], ("step_in_backward", {})).refusal
    assert why in refusal


def test_a_closure_is_called_once(tmp_path):
    code = (
        SETUP
        + """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    calls = []
    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(x[len(calls) % 5]).pow(2).mean()
        loss.backward()
        return loss
    losses = [optimizer.step(closure).detach() for _ in range(3)]
    out = [len(calls), losses, [p.detach() for p in model.parameters()]]
    """
    )
    plain = run(tmp_path, code).out
    for lever in ("step_in_backward", "optimizer_on_cpu"):
        assert same(run(tmp_path, code, (lever, {})).out, plain)


def test_8bit_replaces_adam(tmp_path):
    pytest.importorskip("torchao")
    # The step is compiled where it is used; its plain code does the same arithmetic.
    code = (
        SETUP
        + """
    torch.compile = lambda function=None, **options: function
    from torch.optim import AdamW
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=False, foreach=False)
    assert isinstance(optimizer, torch.optim.AdamW)
    """
    )
    body = (
        LOOP
        + """
    out.append([type(v).__name__ for v in next(iter(optimizer.state.values())).values()])
    """
    )
    plain = run(tmp_path, code + body)
    changed = run(tmp_path, code + body, ("optimizer_8bit", {}))
    assert changed.levers["optimizer_8bit"]["applied"] == 1
    assert changed.out[2].count("OptimState8bit") == 2 and "OptimState8bit" not in plain.out[2]
    assert distance(changed.out[:2], plain.out[:2]) < 0.01
    # A learning rate that the script assigns is taken.
    zero = body.replace("optimizer.zero_grad()", "optimizer.param_groups[0]['lr'] = 0.0")
    frozen = run(tmp_path, code + zero.replace("scheduler.step()", "pass"), ("optimizer_8bit", {}))
    start = run(tmp_path, SETUP + "\n    out = [p.detach() for p in model.parameters()]\n")
    assert same(frozen.out[1], start.out)


def test_classes_derived_from_adam_stay(tmp_path):
    pytest.importorskip("torchao")
    code = (
        SETUP
        + """
    class Mine(torch.optim.AdamW):
        pass
    optimizer = Mine(model.parameters())
    out = [isinstance(optimizer, torch.optim.AdamW), type(optimizer).__name__]
    """
    )
    result = run(tmp_path, code, ("optimizer_8bit", {}))
    assert result.out == [True, "Mine"]
    assert "did not create" in result.levers["optimizer_8bit"]["note"]


def test_state_that_comes_ahead_in_the_backward_pass(oomph, tmp_path):
    """Of the parameters that stepped next in the pass before; some of them do not, and an embedding steps in rows."""
    code = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    last = nn.Linear(10, 10).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *last.parameters()], lr=1e-2)
    for step in range(5):
        out = model(torch.randint(0, 2000, (16, 8)).cuda())
        out = last(out) if step % 2 else out
        nn.functional.cross_entropy(out, torch.randint(0, 10, (16,)).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print([p.double().abs().sum().item() for p in [*model.parameters(), *last.parameters()]])
    print(sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.is_cuda))
    """
    path = tmp_path / "plan.toml"
    path.write_text(
        'format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_on_cpu"\n[[lever]]\nname = "step_in_backward"\n'
    )
    plain = oomph(code, "--compute", "1GiB").out.splitlines()
    found = oomph(code, "--compute", "1GiB", "--plan", str(path))
    assert found.status == 0, found.err
    weights, on_gpu = found.out.splitlines()[:2]
    assert weights == plain[0] and int(on_gpu) == 0 < int(plain[1])


CLIPPED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
before = [p.detach().clone() for p in model.parameters()]
head, rest = [model[2].weight], [p for p in model.parameters() if p is not model[2].weight]
optimizers = [torch.optim.AdamW(rest, lr=1e-2), torch.optim.SGD(head, lr=0.1, momentum=0.9)]
norms, held = [], 0
for step in range(4):
    for part in range(2):  # accumulated
        ids, labels = torch.randint(0, 2000, (16, 8)), torch.randint(0, 10, (16,))
        nn.functional.cross_entropy(model(ids.cuda()), labels.cuda()).backward()
    held = max(held, sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))
    norms.append(nn.utils.clip_grad_norm_(head, 0.02).item())
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=3.0 if step % 2 else 2.0).item())
    nn.utils.clip_grad_value_(rest, 0.001)
    if step != 2:  # a step that is left out
        for optimizer in optimizers:
            optimizer.step()
    model.zero_grad()
print(json.dumps([norms, [(p - q).double().norm().item() for p, q in zip(model.parameters(), before)]]))
print(held)
"""


@pytest.mark.parametrize("others", [[], ["optimizer_on_cpu"], ["split_forward"]], ids="-".join)
def test_gradients_wait_on_the_host(oomph, tmp_path, others):
    """Clipped in part and as a whole by several norms, accumulated, of two optimizers, and dropped."""
    path = tmp_path / "plan.toml"
    plan = ['format = "oomph.plan/1"']
    for name in ("gradients_on_cpu", *others):
        plan += ["[[lever]]", f'name = "{name}"', *["parts = 2"] * (name == "split_forward")]
    path.write_text("\n".join(plan))
    code = "import json\n" + CLIPPED
    plain, plain_held = oomph(code, "--compute", "1GiB").out.splitlines()[:2]
    found = oomph(code, "--compute", "1GiB", "--plan", str(path))
    assert found.status == 0, found.err
    changed, held = found.out.splitlines()[:2]
    for one, other in zip(json.loads(changed), json.loads(plain), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert int(held) < 100_000 < 2_000_000 < int(plain_held)


OWN = """
    class Lion(torch.optim.Optimizer):
        counts = 0
        def __init__(self, params, lr=1e-2, beta=0.9):
            super().__init__(params, dict(lr=lr, beta=beta))
            self.counts = 0
        @torch.no_grad()
        def step(self, closure=None):
            self.counts += 1
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["mean"] = torch.zeros_like(p)
                    p.mul_(1 - 0.01 * group["lr"] / group["step"])
                    p.add_(state["mean"].lerp(p.grad, 0.3).sign(), alpha=-group["lr"] / self.counts)
                    state["mean"].lerp_(p.grad, 1 - group["beta"])
    class Lars(Lion):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(p.detach().norm() / (p.grad.norm() + 1e-6))
            super().step()
    class Lamb(Lion):
        def step(self, closure=None):
            norm = sum(p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None)
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.div_(norm)
            super().step()
    class Listed(torch.optim.Optimizer):
        counts = 0
        def __init__(self, params, lr=1e-2):
            super().__init__(params, dict(lr=lr, step=0))
        @torch.no_grad()
        def step(self, closure=None):
            self.counts += 1
            for group in self.param_groups:
                group["step"] += 1
                params = [p for p in group["params"] if p.grad is not None]
                for p in params:
                    if not self.state[p]:
                        self.state[p]["mean"] = torch.zeros_like(p)
                means = [self.state[p]["mean"] for p in params]
                torch._foreach_mul_(means, 0.9)  # fails for none
                torch._foreach_add_(means, [p.grad for p in params])
                torch._foreach_add_(params, means, alpha=-group["lr"] / group["step"])
    class Lookahead(Lion):
        def __init__(self, params):
            super().__init__(params)
            self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
"""


BOTH = ["step_in_backward", "optimizer_on_cpu"]


@pytest.mark.parametrize(
    ("kind", "levers"),
    # The last one's own step fails where no gradient is left.
    [(kind, levers) for kind in ("Lion", "Lars") for levers in (BOTH[:1], BOTH[1:], BOTH)]
    + [("Listed", BOTH[1:])],
)
def test_optimizers_of_the_scripts_own(tmp_path, kind, levers):
    """What they count in groups or themselves goes up once a step."""
    code = SETUP + ANYWHERE + OWN + f"\n    optimizer = {kind}(model.parameters())\n" + LOOP
    code += "    out += [optimizer.counts, optimizer.param_groups[0]['step']]\n"
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, *[(lever, {}) for lever in levers])
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)


def test_how_optimizers_update_is_tried_out(tmp_path):
    code = (
        SETUP
        + OWN
        + """
    from oomph.levers._shared.parameter_steps import how_it_updates
    kinds = [Lion, Lars, Lamb, Lookahead, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.LBFGS]
    out = [how_it_updates(kind(model.parameters())) for kind in kinds]
    """
    )
    by = ["element", "parameter", None, None, "element", "parameter", None]
    assert run(tmp_path, code).out == by
    for lever in ("step_in_backward", "optimizer_on_cpu"):
        refused = run(
            tmp_path,
            SETUP + OWN + "\n    optimizer = Lamb(model.parameters())\n" + LOOP,
            (lever, {}),
        )
        assert "does not update each parameter separately" in refused.refusal


@pytest.mark.parametrize("together", [1, 20_000, 40_000])
def test_parameters_step_together_in_whatever_order(oomph, tmp_path, together):
    """State that is on its way for the parameters that stepped next in the last backward pass stays right when others do."""
    code = f"""
    import torch
    from oomph.levers import step_in_backward
    step_in_backward.FEWEST = {together}
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4)).cuda()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.01)
    losses = []
    for order in ([0, 1, 2, 3], [0, 1, 2, 3], [3, 1, 0, 2], [0, 2], [0, 1, 2, 3]):
        x = torch.ones(8, 64, device="cuda")
        for i in order:
            x = torch.tanh(layers[i](x))
        optimizer.zero_grad()
        loss = x.pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [value for p in layers.parameters() for value in optimizer.state[p].values()]
    print(losses, [p.double().sum().item() for p in layers.parameters()], [v.double().sum().item() for v in state])
    """
    path = tmp_path / "plan.toml"
    path.write_text(
        'format = "oomph.plan/1"\n[[lever]]\nname = "step_in_backward"\n[[lever]]\nname = "optimizer_on_cpu"\n'
    )
    plain = oomph(code, "--compute", "1GiB").out.splitlines()[0]
    found = oomph(code, "--compute", "1GiB", "--plan", str(path))
    assert found.status == 0, found.err
    assert found.out.splitlines()[0] == plain


TOGETHER = """
import copy, hashlib, io, json, torch
from oomph.levers._shared import parameter_steps
parameter_steps.AT_ONCE = 1 << 17  # two parts
class Nested(torch.optim.Optimizer):  # its state is in a list and a dictionary, partly made anew, of types that change
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                if not state:
                    zeros = [torch.zeros_like(p) for _ in range(3)]
                    state.update(many=zeros[:2], by={"name": zeros[2]}, type=p.bfloat16())
                state["many"][0].add_(p.grad)
                state["many"][1] = state["many"][1] * 0.5 + p.grad
                state["by"]["name"].lerp_(state["many"][0], 0.5)
                other = torch.float32 if state["type"].dtype == torch.bfloat16 else torch.bfloat16
                state["type"] = (state["type"] + p.grad).to(other)
                p.sub_(state["by"]["name"] + state["many"][1] + state["type"], alpha=0.01)
copies = [0]
own = torch.Tensor.copy_
def counted(to, source, non_blocking=False):
    copies[-1] += to.is_cuda != source.is_cuda
    return own(to, source, non_blocking)
torch.Tensor.copy_ = counted
def steps(optimizers, params, count, missing=()):
    for step in range(count):
        for at, p in enumerate(params):
            gradient = torch.empty_like(p, device="cpu").normal_().cuda()
            p.grad = None if step in missing and at % 5 == step else gradient
        copies.append(0)
        for optimizer in optimizers:
            optimizer.step()
def digest(state):
    if isinstance(state, torch.Tensor):
        raw = state.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return [hashlib.sha1(raw.numpy()).hexdigest(), str(state.dtype), state.stride()]
    if isinstance(state, (dict, list)):
        return [digest(one) for one in (state.values() if isinstance(state, dict) else state)]
    return state
def saved(state):
    torch.save(state, file := io.BytesIO())
    return file
def parameters():
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(10)).cuda()
    conv = torch.nn.Conv2d(8, 8, 3).cuda().to(memory_format=torch.channels_last)
    return [*layers.parameters(), *conv.parameters()]
"""

COPIES = {
    "torch.optim.AdamW(params, foreach=True)": 20,
    "torch.optim.AdamW(params, fused=True)": 20,
    "torch.optim.AdamW(params, foreach=False)": 20,
    "torch.optim.SGD(params, 0.1, momentum=0.9)": 20,
    "torch.optim.Adafactor(params)": 12,
    "Nested(params, {})": 122,
}
"""How many of them a step takes, of the state of 22 parameters of four sizes, by optimizer. What a step makes anew leaves alone."""


def test_states_are_copied_together(oomph, tmp_path):
    """In some steps parameters have no gradients; the state is saved and loaded."""
    code = f"""{TOGETHER}
every, sizes, counts, on_gpu = [], [], [], 0
for kind in {list(COPIES)}:
    params = parameters()
    optimizer = eval(kind)
    steps([optimizer], params, 5, missing=(2, 3))
    before = [digest(params), digest(optimizer.state_dict()["state"])]
    sizes += [saved(state).tell() for state in (optimizer.state_dict(), optimizer.state[params[0]])]
    kept, state = copy.deepcopy(optimizer), saved(optimizer.state_dict())
    steps([optimizer], params, 1)
    state.seek(0)
    optimizer.load_state_dict(torch.load(state))
    steps([optimizer], params, 3)
    every += [before, digest(params), digest(optimizer.state_dict()["state"]), digest(kept.state_dict()["state"])]
    counts.append(max(copies[-1], copies[-5]))
    on_gpu += sum(v.is_cuda and v.numel() > 1 for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))
print(json.dumps([every, sizes, on_gpu, counts]))
"""
    plain, changed = with_plan(oomph, tmp_path, code)
    assert changed[0] == plain[0]
    assert all(after <= before for after, before in zip(changed[1], plain[1], strict=True))
    assert changed[2] == 0 < plain[2]
    assert dict(zip(COPIES, changed[3], strict=True)) == COPIES


def with_plan(oomph, tmp_path, code, parameters=""):
    """What a script prints as its first line where the GPU's values are computed, without the lever and with it."""
    path = tmp_path / "plan.toml"
    path.write_text(
        f'format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_on_cpu"\n{parameters}\n'
    )
    for options in ([], ["--plan", str(path)]):
        found = oomph(code, "--compute", "1GiB", *options)
        assert found.status == 0, found.err
        yield json.loads(found.out.splitlines()[0])


@pytest.mark.parametrize("optimizer", ["torch.optim.AdamW(params)", "Nested(params, {})"])
def test_a_part_of_the_state_stays(oomph, tmp_path, optimizer):
    """That of the smaller parameters, in steps and in a state that is loaded. Some step in rows."""
    code = f"""{TOGETHER}
from oomph.levers._shared import parameter_steps
parameter_steps.AT_ONCE = 8192
params = [*parameters(), torch.nn.Parameter(torch.randn(8192, 4).cuda())]
optimizer = {optimizer}
def tensors(holder):
    for value in holder.values() if isinstance(holder, dict) else holder:
        yield from [value] if isinstance(value, torch.Tensor) else tensors(value) if isinstance(value, (dict, list)) else []
def on_host():
    states = optimizer.state_dict()["state"].items()
    return [at for at, state in states if not any(v.is_cuda for v in tensors(state) if v.numel() > 1)]
def digests():
    return digest([params, [dict(sorted(state.items())) for state in optimizer.state_dict()["state"].values()]])
steps([optimizer], params, 3)
first, state, before = on_host(), saved(optimizer.state_dict()), digests()
state.seek(0)
optimizer.load_state_dict(torch.load(state))
steps([optimizer], params, 2)
print(json.dumps([[before, digests()], first, on_host()]))
"""
    plain, changed = with_plan(oomph, tmp_path, code, "percent = 60")
    assert changed[0] == plain[0]
    # 128 KiB of 293, and 16 of each of the first three layers' weights.
    assert changed[1:] == [[0, 2, 4, 22]] * 2
    assert plain[1:] == [[]] * 2


def test_a_checkpoint_waits_for_the_last_copies(oomph, tmp_path):
    """The host may write the state before the GPU has sent it."""
    code = """
    import torch
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    waited, own = [], torch.cuda.Stream.synchronize
    torch.cuda.Stream.synchronize = lambda stream: waited.append(stream) or own(stream)
    state = optimizer.state_dict()
    print(len(waited), state["state"][0]["exp_avg"].device)
    """
    path = tmp_path / "plan.toml"
    path.write_text('format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_on_cpu"\n')
    found = oomph(code, "--plan", str(path))
    assert found.status == 0, found.err
    assert found.out.splitlines()[0] == "1 cpu"


@pytest.mark.parametrize("search", ["None", "'strong_wolfe'"])
def test_history_of_lbfgs_is_on_the_host(oomph, tmp_path, search):
    code = f"""
    import io, torch
    torch.manual_seed(0)
    x = torch.randn(1000, device="cuda").requires_grad_()
    scales = torch.rand(1000, device="cuda") + 0.1
    optimizer = torch.optim.LBFGS([x], history_size=4, max_iter=6, line_search_fn={search})
    def closure():
        optimizer.zero_grad()
        loss = (scales * x ** 2).sum() + (x ** 4).sum()
        loss.backward()
        return loss
    losses = [optimizer.step(closure).item() for _ in range(3)]
    print(losses)
    torch.save(optimizer.state_dict(), file := io.BytesIO())
    file.seek(0)
    state = torch.load(file)["state"][0]  # only plain classes
    print(sum(v.is_cuda for name in ("old_dirs", "old_stps") for v in state[name]), len(state["old_dirs"]))
    """
    path = tmp_path / "plan.toml"
    path.write_text('format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_on_cpu"\n')
    plain = oomph(code, "--compute", "1GiB").out.splitlines()
    found = oomph(code, "--compute", "1GiB", "--plan", str(path))
    assert found.status == 0, found.err
    assert found.out.splitlines()[:2] == [plain[0], "0 4"] and plain[1] == "8 4"


def test_gradients_on_the_host_are_weighted_over_micro_batches(oomph, tmp_path):
    """Parts have different numbers of targets that count: known after the last part, when gradients have left."""
    code = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Linear(64, 50)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    ids, labels = torch.randint(0, 2000, (24, 8)), torch.randint(0, 50, (24, 8))
    labels[::3, 2:] = -100
    data = torch.utils.data.TensorDataset(ids, labels)
    for ids, labels in torch.utils.data.DataLoader(data, batch_size=6):
        loss = nn.functional.cross_entropy(model(ids.cuda()).flatten(0, 1), labels.cuda().flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    print([(p - q).double().norm().item() for p, q in zip(model.parameters(), before)])
    """
    path = tmp_path / "plan.toml"
    path.write_text(
        'format = "oomph.plan/1"\n[[lever]]\nname = "gradients_on_cpu"\n[[lever]]\nname = "micro_batch"\nparts = 2\n'
    )
    plain = oomph(code, "--compute", "1GiB").out.splitlines()[0]
    found = oomph(code, "--compute", "1GiB", "--plan", str(path))
    assert found.status == 0, found.err
    numbers = [
        [float(one.strip("[],")) for one in line.split()]
        for line in (plain, found.out.splitlines()[0])
    ]
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-5)


@pytest.mark.parametrize("lever", ["gradients_on_cpu", "step_in_backward"])
def test_gradients_that_are_not_cleared_by_zero_grad_stay(oomph, tmp_path, lever):
    """A lever that frees them does not see `p.grad = None`, and a script that clears nothing adds to the gradients of the step before."""
    path = tmp_path / "plan.toml"
    path.write_text(f'format = "oomph.plan/1"\n[[lever]]\nname = "{lever}"\n')
    code = """
    import torch
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
    """
    found = oomph(code, "--plan", str(path))
    assert found.status == 2 and "by other means than zero_grad" in found.err
