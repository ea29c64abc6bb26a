"""`offload_activations` and `save_on_cpu`: bitwise the plain run. Here the CPU stands for the GPU: everything leaves."""

import pytest
import torch

from tests.support.blocks import ALL, BLOCKS, TRAIN
from tests.support.levers import run, same

ANYWHERE = """
    from oomph.levers._shared import host_copies as lever
    lever._is_offloadable = lever._has_memory
    lever.SMALLEST, lever.IN_FLIGHT = 64, IN_FLIGHT
    entries, sizes = [], []
    make = lever.Entry.__init__
    def counted(entry, *args):
        make(entry, *args)
        entries.append(entry.nbytes)
    lever.Entry.__init__ = counted
"""


def both(tmp_path, code, modules=ALL, in_flight=4096, applied=None):
    """The lever leaves the same `out`; returns its report."""
    plain = run(tmp_path, ANYWHERE + code, IN_FLIGHT=in_flight)
    changed = run(
        tmp_path,
        ANYWHERE + code,
        ("offload_activations", {"modules": modules}),
        IN_FLIGHT=in_flight,
    )
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    report = changed.levers["offload_activations"]
    assert report["applied"] == (len(modules) if applied is None else applied), report
    return report


@pytest.mark.parametrize("in_flight", [0, 4096, 1 << 30])
def test_bitwise(tmp_path, in_flight):
    assert both(tmp_path, BLOCKS + TRAIN, in_flight=in_flight)["note"] is None


def test_several_calls_and_backward_passes(tmp_path):
    code = TRAIN.replace("model(x)", "(model(x) + model(x * 2))").replace(
        "loss.backward()",
        "loss.backward(retain_graph=True); loss.backward(); model(x).sum().backward()",
    )
    both(tmp_path, BLOCKS + code)


def test_views_and_shared_tensors_are_copied_once(tmp_path):
    code = """
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 48)
        def forward(self, x):
            q, k, v = self.c(x).chunk(3, -1)
            return self.a(x) * self.b(x) + (q * k) * v
    model = Attention()
    x = torch.randn(32, 16, requires_grad=True)
    model(x).sum().backward()
    out = [[p.grad for p in model.parameters()], x.grad]
    sizes.extend(entries)
    """
    both(tmp_path, code, ["Attention"])
    code += "\n    out = sorted(sizes)\n"
    sizes = run(
        tmp_path,
        ANYWHERE + code,
        ("offload_activations", {"modules": ["Attention"]}),
        IN_FLIGHT=0,
    ).out
    row = 32 * 16 * 4
    # x; a(x); b(x); q*k; and q, k, v as the one tensor that they are views of.
    assert sizes == [row, row, row, row, 3 * row]


def test_offloading_what_checkpointing_keeps(tmp_path):
    code = ANYWHERE + BLOCKS + TRAIN
    plain = run(tmp_path, code, IN_FLIGHT=0)
    changed = run(
        tmp_path,
        code,
        ("checkpoint", {"modules": ALL}),
        ("offload_activations", {"modules": ALL}),
        IN_FLIGHT=0,
    )
    assert same(changed.out, plain.out)
    assert changed.levers["checkpoint"]["applied"] == 4
    assert changed.levers["offload_activations"]["applied"] == 4


def test_nothing_is_left_behind(tmp_path):
    code = ANYWHERE + BLOCKS + TRAIN + """
    import gc
    from oomph.levers._shared.host_copies import Entry, Transfers
    del loss, x
    gc.collect()
    out = sum(isinstance(o, Entry) for o in gc.get_objects())
    """  # fmt: skip
    assert run(tmp_path, code, ("offload_activations", {"modules": ALL}), IN_FLIGHT=0).out == 0


@pytest.mark.parametrize(
    "lever", [("offload_activations", {"modules": ALL}), ("save_on_cpu", {"in_flight": 0})]
)
@pytest.mark.parametrize("smallest", [64, 1 << 30])
def test_a_graph_without_a_backward_pass_is_freed(tmp_path, lever, smallest):
    """Operators that save what they make must not keep themselves, be it here or on the host."""
    code = ANYWHERE + BLOCKS + """
    import gc, weakref
    lever.SMALLEST = smallest
    gc.disable()
    x = torch.randn(3, 4, 8, 8, requires_grad=True) * 2
    y = model(x).softmax(-1)
    there = weakref.ref(x.grad_fn.metadata.setdefault("seen", set()))
    del x, y
    out = there() is None
    """  # fmt: skip
    assert run(tmp_path, code, lever, IN_FLIGHT=0, smallest=smallest).out


def test_a_saved_tensor_that_is_changed_is_an_error(tmp_path):
    code = (
        ANYWHERE
        + """
    class Net(nn.Module):
        def forward(self, x):
            y = x.exp()
            loss = y.sum()
            y.add_(1)
            return loss
    x = torch.randn(100, requires_grad=True)
    loss = Net()(x)
    try:
        loss.backward()
        out = "wrong"
    except RuntimeError as error:
        out = str(error)
    """
    )
    result = run(tmp_path, code, ("offload_activations", {"modules": ["Net"]}), IN_FLIGHT=1 << 30)
    assert "inplace" in result.out


def test_inert_on_the_cpu_and_without_gradients(tmp_path):
    result = run(tmp_path, BLOCKS + TRAIN, ("offload_activations", {"modules": ALL}))
    report = result.levers["offload_activations"]
    assert report["applied"] == 0 and "on a GPU" in report["note"]


def test_same_helper_sees_differences():
    assert not same([torch.zeros(2)], [torch.tensor([0.0, 1e-30])])


def everything(in_flight):
    return "save_on_cpu", {"in_flight": in_flight}


@pytest.mark.parametrize("in_flight", [0, 4096, 1 << 30])
def test_everything_that_is_saved_leaves_bitwise(tmp_path, in_flight):
    plain = run(tmp_path, ANYWHERE + BLOCKS + TRAIN, IN_FLIGHT=in_flight)
    changed = run(tmp_path, ANYWHERE + BLOCKS + TRAIN, everything(in_flight), IN_FLIGHT=0)
    assert changed.refusal is None and same(changed.out, plain.out)
    assert changed.levers["save_on_cpu"]["applied"] > 0


GRADIENTS_OF_GRADIENTS = """
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1))
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh())
    optimizer = torch.optim.Adam([*critic.parameters(), *maker.parameters()], lr=1e-2)
    out = []
    for _ in range(3):
        made = maker(torch.randn(24, 4))
        mixed = (made * torch.rand(24, 1)).detach().requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(made).mean() + ((slope.norm(dim=1) - 1) ** 2).mean() + made.exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append([loss.detach().clone(), *(p.detach().clone() for p in critic.parameters())])
"""


def test_gradients_of_gradients_and_losses_leave_too(tmp_path):
    plain = run(tmp_path, ANYWHERE + GRADIENTS_OF_GRADIENTS, IN_FLIGHT=0)
    changed = run(tmp_path, ANYWHERE + GRADIENTS_OF_GRADIENTS, everything(0), IN_FLIGHT=0)
    assert changed.refusal is None and same(changed.out, plain.out)
    # More than the layers of both models save.
    assert changed.levers["save_on_cpu"]["applied"] > 3 * 12


def test_what_was_changed_after_it_was_saved_is_an_error(tmp_path):
    code = """
    x = torch.randn(64, 16, requires_grad=True)
    y = x.exp()
    y.mul_(2)
    try:
        y.sum().backward()
        out = "no error"
    except RuntimeError as error:
        out = str(error)
    """
    out = run(tmp_path, ANYWHERE + code, everything(1 << 30), IN_FLIGHT=1 << 30).out
    assert "modified by an inplace operation" in out and "save_on_cpu" in out


def test_no_more_leaves_than_may(tmp_path):
    plain = run(tmp_path, ANYWHERE + GRADIENTS_OF_GRADIENTS, IN_FLIGHT=0)
    went = []
    for most in (0, 4096, 1 << 30):
        lever = "save_on_cpu", {"in_flight": 0, "most": most}
        changed = run(tmp_path, ANYWHERE + GRADIENTS_OF_GRADIENTS, lever, IN_FLIGHT=0)
        assert changed.refusal is None and same(changed.out, plain.out)
        went.append(changed.levers["save_on_cpu"]["applied"])
    # What was on the host makes room when the backward pass has used it: some leaves in each step.
    assert went[0] == 0 and 3 * 3 <= went[1] < went[2]


def test_what_leaves_is_spread_over_the_step(tmp_path):
    """From the second step on, when it is known how much a step saves: copies then go on beside all of its kernels."""
    code = ANYWHERE + """
    x = torch.randn(8, 8, requires_grad=True)  # saves 256 bytes each time
    out, made = [], entries
    for step in range(3):
        y, went = x, []
        other = x.exp()  # does not go back: it is still there when the next step begins
        for _ in range(64):
            before = len(made)
            y = y.exp()
            went.append(len(made) - before)
        y.sum().backward()
        out.append(went)
    """  # fmt: skip
    lever = "save_on_cpu", {"in_flight": 0, "most": 4096}
    first, *later = run(tmp_path, code, lever, IN_FLIGHT=0).out
    assert first == [1] * 15 + [0] * 49
    for went in later:
        assert 14 <= sum(went) <= 16, went
        words = "".join(map(str, went))
        assert "11" not in words and "0" * 6 not in words, words


def test_a_model_under_vmap_keeps_what_has_no_memory_of_its_own(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(64, 8)
    stacked = {k: torch.stack([p.detach()] * 4).requires_grad_() for k, p in model.named_parameters()}
    def one(weights, x):
        return torch.func.functional_call(model, weights, (x,))
    loss = torch.vmap(one, (0, None))(stacked, x).pow(2).mean() + model(x).pow(2).mean()
    loss.backward()
    out = [loss.detach(), [p.grad for p in stacked.values()], [p.grad for p in model.parameters()]]
    """
    plain = run(tmp_path, ANYWHERE + code, IN_FLIGHT=4096)
    changed = run(tmp_path, ANYWHERE + code, ("save_on_cpu", {}), IN_FLIGHT=4096)
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    assert changed.levers["save_on_cpu"]["applied"] > 0
