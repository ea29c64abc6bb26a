"""A step is made whole, with the results of a plain loop, whatever allocation fails."""

import copy
import os

import fault_sweep
import oomph
import pytest
import torch
from faults import Faults, allocates
from oomph.levers.checkpoint import is_checkpointed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)


class Capacity(TorchDispatchMode):
    """Operators whose result has more than `elements` run out of memory."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if allocates(func) and isinstance(out, torch.Tensor) and out.numel() > self.elements:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return out


def linear_job(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda model, b: (model(b["x"]) - b["y"]).pow(2).mean()  # noqa: E731
    return model, oomph.TrainStep(model, optimizer, loss, **options)


def data(n):
    g = torch.Generator().manual_seed(n)
    return {"x": torch.randn(n, 6, generator=g), "y": torch.randn(n, 1, generator=g)}


@pytest.mark.parametrize(("model", "optimizer", "clip", "scaler"), [
    ("mlp", "adamw", None, False), ("mlp", "sgd_momentum", 0.5, True),
    ("transformer", "adamw_foreach", 0.5, False), ("cnn", "adamw", None, False),
])  # fmt: skip
@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("stride", [2, 1], ids=["half", "all"])
def test_faults_leave_the_same_bits(model, optimizer, clip, scaler, step, stride):
    case = dict(model=model, optimizer=optimizer, clip=clip, scaler=scaler, step=step)
    with open(os.devnull, "w") as out:
        every = (37 if model == "transformer" else 11) * stride
        total, tally = fault_sweep.sweep(case, "cpu", "always", fault_sweep.OnCpu(), every, out)
    assert total > 40 and set(tally) == {"equal"}, tally


def test_the_sweep_sees_differences():
    """The comparison would notice a step made twice."""
    case = dict(model="mlp", optimizer="adamw", clip=None, scaler=False, step=0)
    once = fault_sweep.by_hand(case, "cpu", [1, 1, 1, 1])
    other = fault_sweep.by_hand(case, "cpu", [1, 2, 1, 1])
    assert not all(map(torch.equal, once, other))


def test_parts_of_unequal_size_weigh_what_they_hold():
    plain, _ = linear_job()
    model, step = linear_job(micro_batch=3)
    for n in (7, 10, 4):
        batch = data(n)
        report = step(batch)
        loss = (plain(batch["x"]) - batch["y"]).pow(2).mean()
        plain.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
        assert report.micro_batches == -(-n // 3)
        assert torch.allclose(report.loss, loss, rtol=1e-5)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_tokens_weigh_by_labels_and_parts_without_any_are_skipped():
    torch.manual_seed(0)
    embed = nn.Embedding(9, 9)
    whole = copy.deepcopy(embed)
    labels = torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100], [-100] * 4])
    batch = {"ids": torch.arange(12).view(3, 4) % 9, "labels": labels}

    def loss(model, b):
        return nn.functional.cross_entropy(model(b["ids"]).flatten(0, 1), b["labels"].flatten())

    step = oomph.TrainStep(
        embed, torch.optim.SGD(embed.parameters(), lr=1.0), loss,
        weight=oomph.tokens(shift=False), micro_batch=1,
    )  # fmt: skip
    report = step(batch)
    expected = loss(whole, batch)
    expected.backward()
    assert torch.allclose(report.loss, expected)
    assert torch.allclose(embed.weight, whole.weight - whole.weight.grad, atol=1e-6)


def test_a_wrong_weight_is_noticed():
    torch.manual_seed(0)
    model = nn.Embedding(9, 9)
    labels = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [1, 1, 1, 1], [3, -100, -100, -100]])
    batch = {"ids": torch.arange(16).view(4, 4) % 9, "labels": labels}

    def loss(model, b):
        return nn.functional.cross_entropy(model(b["ids"]).flatten(0, 1), b["labels"].flatten())

    step = oomph.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), loss, micro_batch=1)
    with pytest.raises(oomph.Refused, match="weighted mean of its parts"):
        step(batch)


def test_contrastive_losses_are_refused_or_warned_of():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    loss = lambda m, b: nn.functional.cross_entropy(m(b) @ b.T, torch.arange(len(b)))  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(oomph.Refused, match="the loss of 4 samples is"):
        oomph.TrainStep(model, optimizer, loss, micro_batch=2)(torch.randn(8, 4))
    with pytest.warns(UserWarning, match="not those of the whole batch"):
        oomph.TrainStep(model, optimizer, loss, micro_batch=2, coupled="warn")(torch.randn(8, 4))
    whole = oomph.TrainStep(model, optimizer, loss)
    assert whole(torch.randn(8, 4)).micro_batches == 1


def test_batch_norm_is_refused_only_where_it_matters():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda m, b: m(b).pow(2).mean()  # noqa: E731
    assert oomph.TrainStep(model, optimizer, loss)(torch.randn(8, 4)).micro_batches == 1
    with pytest.raises(oomph.Refused, match="BatchNorm1d"):
        oomph.TrainStep(model, optimizer, loss, micro_batch=2)(torch.randn(8, 4))
    step = oomph.TrainStep(model, optimizer, loss)
    before = copy.deepcopy(model.state_dict())
    batch = torch.randn(8, 4)
    with Capacity(16), pytest.raises(oomph.Refused, match="And memory ran out"):
        step(batch)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    model.eval()
    assert (
        oomph.TrainStep(model, optimizer, loss, micro_batch=2)(torch.randn(8, 4)).micro_batches == 4
    )


def test_it_shrinks_to_what_fits_and_grows_back():
    _, step = linear_job(grow_after=3)
    with Capacity(8 * 32):
        first = step(data(32))
        second = step(data(32))
    assert first.attempts > 1 and first.micro_batch <= 8 and second.attempts == 1
    later = [step(data(32)).micro_batches for _ in range(40)]
    assert later[-1] < second.micro_batches and later == sorted(later, reverse=True)


def test_single_samples_that_do_not_fit_pull_the_next_rung_then_stop_with_the_state_as_before():
    class Counting:
        def __init__(self, name):
            self.name, self.applied = name, 0

        def apply(self, model):
            self.applied += 1

        def undo(self, model):
            self.applied -= 1

    rungs = [Counting("one"), Counting("two")]
    seen = []
    model, step = linear_job(rungs=rungs, on_failure=lambda s, e: seen.append(type(e)))
    before = copy.deepcopy(model.state_dict())
    batch = data(4)
    with Capacity(16), pytest.raises(oomph.CannotFit, match="levers applied: one, two"):
        step(batch)
    assert [r.applied for r in rungs] == [1, 1] and seen == [oomph.CannotFit]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert step.state_dict()["rungs"] == ["one", "two"]
    _, fresh = linear_job(rungs=[Counting("one"), Counting("two")])
    fresh.load_state_dict(step.state_dict())
    assert fresh(data(4)).rungs == ["one", "two"]


def test_checkpointing_blocks_changes_no_bit():
    fault_case = dict(model="transformer", optimizer="adamw", clip=None, scaler=False)
    model, _, _, batches, loss_fn = fault_sweep.build(fault_case, "cpu")
    plain = copy.deepcopy(model)
    rung = oomph.CheckpointBlocks()
    rung.apply(model)
    torch.manual_seed(5)
    loss_fn(model, batches[0]).backward()
    torch.manual_seed(5)
    loss_fn(plain, batches[0]).backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert all(is_checkpointed(block) for block in model.blocks)
    rung.undo(model)
    assert not any(is_checkpointed(block) for block in model.blocks)


def test_other_errors_pass_through_untouched():
    class Mine(Exception):
        pass

    error = Mine("x")

    def loss(model, b):
        raise error

    model = nn.Linear(2, 2)
    step = oomph.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    with pytest.raises(Mine) as caught:
        step(torch.zeros(2, 2))
    assert caught.value is error


def test_batches_changed_in_place_are_not_used_again():
    model, _ = linear_job()

    def loss(model, b):
        b["x"] += 1
        return model(b["x"]).pow(2).mean()

    step = oomph.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    with Capacity(8 * 32), pytest.raises(oomph.CannotFit, match="changed the batch in place"):
        step(data(32))


def test_unprotected_optimizer_steps_are_not_repeated():
    model, _ = linear_job()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = lambda m, b: m(b["x"]).pow(2).mean()  # noqa: E731
    step = oomph.TrainStep(model, optimizer, loss, protect="never")
    step(data(4))
    faults = Faults()
    with faults:
        step(data(4))
    with Faults([faults.count]), pytest.raises(oomph.StateLost, match="protect"):
        step(data(4))


def test_the_decorator_collects_what_the_function_gives():
    model, _ = linear_job()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @oomph.train_step(model, optimizer, micro_batch=2, max_norm=1.0)
    def step(part):
        out = model(part["x"])
        return (out - part["y"]).pow(2).mean(), {"out": out}

    report = step(data(5))
    assert sum(len(a["out"]) for a in report.aux) == 5 and report.grad_norm is not None
    assert not report.aux[0]["out"].requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(coupled="no"), "coupled"), (dict(micro_batch=0), "micro_batch"), (dict(weight=3), "weight"),
        (dict(margin=2), "margin"), (dict(samples=len), "samples and part"), (dict(protect="x"), "protect"),
    ],
)  # fmt: skip
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        linear_job(**options)


def test_wrong_losses_and_optimizers():
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"one element.*\(3, 2\)"):
        oomph.TrainStep(model, sgd, lambda m, b: m(b))(torch.zeros(3, 2))
    with pytest.raises(TypeError, match="LBFGS"):
        oomph.TrainStep(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="mapping"):
        oomph.TrainStep(model, sgd)(torch.zeros(3, 2))
