"""`oomph.levers._shared.recomputation` and `oomph._random_states`: what is computed again, and what it costs."""

import contextlib
import gc
import random
import weakref

import numpy
import pytest
import torch
from oomph._random_states import RandomStates
from oomph.levers._shared.recomputation import recomputed_in_backward
from torch import nn

NOTHING = contextlib.nullcontext()


def again(forward, *args, **kwargs):
    return recomputed_in_backward("Net.block", forward, args, kwargs, NOTHING, NOTHING)


class Counted(nn.Module):
    """Notes its calls and, weakly, its results."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls, self.results = inner, 0, []

    def forward(self, x):
        self.calls += 1
        result = self.inner(x)
        self.results.append(weakref.ref(result))
        return result


def test_what_is_saved_goes_and_the_last_product_is_not_recomputed_in_backward():
    first, act, last = Counted(nn.Linear(4, 8)), Counted(nn.Sigmoid()), Counted(nn.Linear(8, 2))
    x = torch.randn(3, 4, requires_grad=True)
    y = again(nn.Sequential(first, act, last), x)
    gc.collect()
    assert [module.results[0]() for module in (first, act)] == [None, None]
    y.sum().backward()
    # The last product's input is all that it saves: the call ends before its result is there.
    assert (first.calls, act.calls, last.calls) == (2, 2, 2)
    assert (len(first.results), len(act.results), len(last.results)) == (2, 2, 1)
    plain = torch.autograd.grad(last.inner(torch.sigmoid(first.inner(x))).sum(), x)[0]
    assert torch.equal(x.grad, plain)


def test_nothing_stays_after_the_backward_pass():
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(3, 4)
    held = weakref.ref(x)
    loss = again(module, x).sum()
    del x
    assert held() is not None  # the argument is kept
    loss.backward()
    gc.collect()
    assert held() is None


def test_twice_through_one_graph_and_twice_for_one_tensor():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,), (same,) = ctx.saved_tensors, ctx.saved_tensors
            assert torch.equal(x, same)
            return 2 * x * gradient

    x = torch.randn(3, requires_grad=True)
    y = again(lambda x: Square.apply(x.exp()), x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert torch.allclose(x.grad, 4 * (2 * x).exp())


def test_second_derivatives():
    def second(call):
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x = torch.randn(3, requires_grad=True)
    assert torch.equal(
        second(lambda x: again(lambda x: x.sin() * x, x)), second(lambda x: x.sin() * x)
    )


def test_a_backward_pass_inside_of_the_forward_pass():
    def forward(x):
        inside = x.exp()
        (gradient,) = torch.autograd.grad(inside.sum(), x, create_graph=True)
        return inside * gradient

    x = torch.randn(3, requires_grad=True)
    again(forward, x).sum().backward()
    mine, x.grad = x.grad, None
    forward(x).sum().backward()
    assert torch.equal(mine, x.grad)


@pytest.mark.parametrize("change", ["shape", "fewer"])
def test_another_forward_is_an_error(change):
    calls = []

    def forward(x):
        calls.append(1)
        if len(calls) == 1:
            return x.exp().sin()
        return x[:1].exp().sin() if change == "shape" else x.exp()

    y = again(forward, torch.randn(3, requires_grad=True)).sum()
    with pytest.raises(
        RuntimeError,
        match=r"Net\.block behaved differently when it was recomputed: .*oomph checkpoint",
    ):
        y.backward()


def test_a_forward_that_catches_exceptions():
    """The end of the second call, after the last tensor that it saves, is nothing that it may catch."""
    layer, fallbacks = nn.Linear(4, 4), []

    def forward(x):
        try:
            return layer(x).exp()
        except Exception:
            fallbacks.append(1)
            return layer(x).sin()

    x = torch.randn(3, 4, requires_grad=True)
    again(forward, x).sum().backward()
    mine, x.grad = x.grad, None
    forward(x).sum().backward()
    assert torch.equal(mine, x.grad) and not fallbacks


def test_nested_and_under_a_default_device():
    def inner(x):
        return again(lambda x: x.exp() + torch.ones(3), x).sin()

    x = torch.randn(3, requires_grad=True)
    with torch.device("cpu"):
        again(lambda x: again(inner, x) * x, x).sum().backward()
    mine, x.grad = x.grad, None
    ((x.exp() + 1).sin() * x).sum().backward()
    assert torch.equal(mine, x.grad)


def test_autocast_is_as_it_was():
    layer, kinds = nn.Linear(4, 4), []

    def forward(x):
        y = layer(x)
        kinds.append(y.dtype)
        return y.float().exp()

    x = torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = again(forward, x)
    y.sum().backward()
    assert kinds == [torch.bfloat16, torch.bfloat16]
    kinds.clear()
    y = again(forward, x)
    with torch.autocast("cpu", torch.bfloat16):
        y.sum().backward()
    assert kinds == [torch.float32, torch.float32]


DRAWS = {
    "torch": lambda: torch.rand(2).tolist(),
    "python": lambda: random.random(),
    "python, a normal number that waits": lambda: random.gauss(0, 1),
    "numpy": lambda: numpy.random.rand(),
    "numpy, a normal number that waits": lambda: numpy.random.randn(),
}


@pytest.mark.parametrize("source", DRAWS)
@pytest.mark.parametrize("before", [0, 1])
def test_random_states_come_back(source, before):
    draw = DRAWS[source]
    for _ in range(before):
        draw()
    states = RandomStates()
    first = draw()
    states.keep_if_drawn()
    second = draw()
    states.restore()
    assert draw() == first
    states.put_back()
    following = draw()
    assert following not in (first, second)
    states.put_back()  # nothing to undo
    assert draw() != following


def test_what_was_not_drawn_is_not_set_back():
    states = RandomStates()
    states.keep_if_drawn()
    first = [draw() for draw in DRAWS.values()]
    states.restore()
    assert first != [draw() for draw in DRAWS.values()]
    assert all(draw() not in first for draw in DRAWS.values())


def test_another_generator_of_numpy():
    kept = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(3))
    try:
        states = RandomStates()
        first = numpy.random.rand()
        states.keep_if_drawn()
        states.restore()
        assert numpy.random.rand() == first
    finally:
        numpy.random.set_bit_generator(kept)


def test_python_is_not_asked_for_its_state_again_while_it_draws_nothing(monkeypatch):
    RandomStates()
    asked = []
    original = random.getstate
    monkeypatch.setattr(random, "getstate", lambda: asked.append(1) or original())
    for _ in range(20):
        states = RandomStates()
        states.keep_if_drawn()
        states.restore()
        states.put_back()
    assert not asked
    random.random()
    RandomStates()
    assert len(asked) == 1
