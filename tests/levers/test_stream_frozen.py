"""Frozen weights in host memory, on the CPU: the same bits, through any graph, and what is refused."""

import pytest
import torch

from tests.support.levers import run, same

NET = """
    class Adapted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, inner.out_features, bias=False)

        def forward(self, x):
            return self.inner(x) + self.up(self.down(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(64), nn.Linear(64, 256)
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.back = nn.Parameter(torch.randn(256, 64) / 20)

        def forward(self, x):
            y = self.norm(x)
            x = x + self.attention(y, y, y)[0]
            return x + torch.relu(self.fc(y)) @ self.back

    class Net(nn.Module):
        def __init__(self, depth=4):
            super().__init__()
            self.stem = nn.Linear(8, 64)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.head = nn.Linear(64, 3)

        def forward(self, x):
            x = self.stem(x)
            for index, block in enumerate(self.blocks):
                x = CALL(block, x) if CALL else block(x)
            return self.head(x)

    model = Net()
    for block in model.blocks:
        block.requires_grad_(False)
        block.fc = Adapted(block.fc)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
"""
TRAIN = """
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 5, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out = losses, [p.detach() for p in model.parameters()], [p.grad for p in trained]
"""
BLOCKS = [f"Net.blocks.{index}" for index in range(4)]
STREAM = ("stream_frozen", {"modules": BLOCKS})


def checkpointed(reentrant):
    from torch.utils.checkpoint import checkpoint

    return lambda block, x: checkpoint(block, x, use_reentrant=reentrant)


@pytest.mark.parametrize("call", [None, checkpointed(False), checkpointed(True)])
@pytest.mark.parametrize("modules", [BLOCKS, BLOCKS[1:2], BLOCKS[2:]])
def test_training_has_the_same_bits(tmp_path, call, modules):
    plain = run(tmp_path, NET + TRAIN, CALL=call)
    found = run(tmp_path, NET + TRAIN, ("stream_frozen", {"modules": modules}), CALL=call)
    assert same(found.out, plain.out)
    report = found.levers["stream_frozen"]
    assert report["applied"] == len(modules) and "in host memory" in report["note"]


@pytest.mark.parametrize(
    "other",
    [
        ("checkpoint", {"modules": BLOCKS}),
        ("checkpoint", {"modules": ["Net"]}),
        ("save_on_cpu", {"in_flight": 1 << 20}),
        ("recompute", {"modules": ["Net.blocks.0.norm", "Net.head"]}),
        ("step_in_backward", {}),
    ],
)
def test_beside_levers_that_change_what_is_saved(tmp_path, other):
    plain = run(tmp_path, NET + TRAIN, other, CALL=None)
    assert same(run(tmp_path, NET + TRAIN, other, STREAM, CALL=None).out, plain.out)


def test_parts_of_a_batch(tmp_path):
    plain = run(tmp_path, NET + TRAIN, ("split_forward", {"parts": 2}), CALL=None)
    found = run(tmp_path, NET + TRAIN, ("split_forward", {"parts": 2}), STREAM, CALL=None)
    assert found.levers["split_forward"]["applied"] and same(found.out, plain.out)


def test_the_gpu_side_holds_two_modules(tmp_path):
    """What autograd saves keeps no copy of weights alive, in neither direction."""
    code = (
        NET
        + """
    import weakref
    from oomph.levers._shared import streamed_weights
    alive, most, renew = [], [], streamed_weights.Stage._renew

    def counted(stage, slot, block):
        renew(stage, slot, block)
        alive.append(weakref.ref(stage.slots[slot]))
        most.append(sum(ref() is not None for ref in alive))

    streamed_weights.Stage._renew = counted
    """
        + TRAIN
        + "    out = max(most), len(most)\n"
    )
    # The first step does not know yet what comes next on the way back. From then on two of four are there at each turn.
    largest, brought = run(tmp_path, code, STREAM, CALL=None).out
    assert largest == 2 and brought <= 4 + 2 + 2 * (2 + 2)


def test_a_teacher_without_gradients_and_one_through_which_they_go(tmp_path):
    code = (
        NET
        + """
    class Teacher(Net): pass
    teacher = Teacher().requires_grad_(False)
    for step in range(3):
        x = torch.randn(4, 5, 8)
        with torch.inference_mode():
            wanted = teacher(x)
        loss = (model(x) - wanted.clone()).square().mean() + teacher(model.stem(x)[..., :8]).mean()
        loss.backward()
        optimizer.step()
    out = [p.grad for p in trained], loss.detach()
    """
    )
    lever = (
        "stream_frozen",
        {"modules": [name.replace("Net", "Teacher") for name in BLOCKS] + BLOCKS},
    )
    found = run(tmp_path, code, lever, CALL=None)
    assert found.levers["stream_frozen"]["applied"] == 8
    assert same(found.out, run(tmp_path, code, CALL=None).out)


def test_gradients_of_gradients_and_a_graph_that_is_kept(tmp_path):
    code = (
        NET
        + """
    x = torch.randn(4, 5, 8, requires_grad=True)
    y = torch.tanh(model(x)).sum()
    first = torch.autograd.grad(y, x, create_graph=True)[0]
    first.square().sum().backward(retain_graph=True)
    y.backward()
    out = [p.grad for p in trained], x.grad
    """
    ).replace("y, y, y)", "y, y, y, need_weights=False)")
    kind = torch.nn.attention.SDPBackend.MATH
    with torch.nn.attention.sdpa_kernel(kind):
        assert same(run(tmp_path, code, STREAM, CALL=None).out, run(tmp_path, code, CALL=None).out)


def test_a_graph_without_a_backward_pass_is_freed(tmp_path):
    """Operators that save what they make must not keep themselves, as the first pass of a split call is dropped."""
    code = (
        NET
        + """
    import gc, weakref
    gc.disable()
    x = torch.randn(4, 5, 8, requires_grad=True) * 2
    y = model(x)
    there = weakref.ref(x.grad_fn.metadata.setdefault("seen", set()))
    del x, y
    out = there() is None
    """
    )
    assert run(tmp_path, code, STREAM, CALL=None).out


def test_what_is_frozen_no_more_is_refused(tmp_path):
    code = NET + "    model(torch.randn(2, 5, 8))\n    model.blocks[1].requires_grad_(True)\n"
    found = run(tmp_path, code + "    model(torch.randn(2, 5, 8))\n", STREAM, CALL=None)
    assert "weights of Net.blocks.1 that were frozen are trained now" in found.refusal


def test_weights_that_change_before_their_backward_pass_are_named(tmp_path):
    code = (
        NET
        + """
    loss = model(torch.randn(2, 5, 8)).sum()
    with torch.no_grad():
        model.blocks[1].fc.inner.weight.mul_(2)
    try:
        loss.backward()
    except RuntimeError as error:
        out = str(error)
    """
    )
    found = run(tmp_path, code, STREAM, CALL=None).out
    assert "weights of Net.blocks.1 were changed before the backward pass" in found
    assert "modified by an inplace operation" in run(tmp_path, code, CALL=None).out
