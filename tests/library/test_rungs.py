"""Single samples that do not fit: the cheapest lever that saves what is missing, the same bits."""

import copy
import gc
import os
import weakref

import fault_sweep
import models
import oomph
import pytest
import torch
from faults import allocates
from oomph._training.block_survey import BlockSurvey
from oomph._training.ladder import Ladder, ModuleLever, Unsuitable
from oomph._training.memory_model import GpuMemory
from oomph.levers._shared.blocks import repeated
from oomph.levers.checkpoint import is_checkpointed
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.command import ROOT
from tests.support.library import JOB, check

torch.set_num_threads(1)


class Memory(TorchDispatchMode):
    """So many bytes for what operators make; counted by storages that are alive."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity, self.alive, self.peak, self.failures = capacity, {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        held = sum(size for _, size in self.alive.values())
        if not allocates(func):
            return out
        if held > self.capacity:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 KiB.")
        self.peak = max(self.peak, held)
        return out


def train(case, capacity, rungs=None):
    """Steps within so much memory: what each did, and all that they leave."""
    model, optimizer, scaler, batches, loss = fault_sweep.build(case, "cpu")
    step = oomph.TrainStep(
        model, optimizer, loss, weight=fault_sweep.weight(case["model"]), rungs=rungs, grow_after=0
    )
    memory = Memory(capacity)
    # Steps of an optimizer are another test's matter.
    optimizer.register_step_pre_hook(lambda *_: setattr(memory, "capacity", 1 << 40))
    optimizer.register_step_post_hook(lambda *_: setattr(memory, "capacity", capacity))
    reports = []
    for batch in batches:
        with memory:
            reports.append(step(batch))
    return reports, fault_sweep.everything(model, optimizer, scaler, "cpu"), memory


def long(device="cpu"):
    """The transformer with more activations than parameters."""
    model, _, loss = models.transformer(device)

    def batch(seed):
        ids = torch.randint(0, 61, (2, 96), generator=torch.Generator().manual_seed(seed))
        return {"ids": ids, "labels": ids}

    return model, batch, loss


@pytest.mark.parametrize("model", ["long", "residual"])
def test_rungs_leave_the_same_bits(model, monkeypatch):
    monkeypatch.setitem(models.MODELS, "long", long)
    monkeypatch.setitem(models.WEIGHTS, "long", "labels")
    case = dict(model=model, optimizer="adamw", clip=None, scaler=False)
    _, _, memory = train(case, 1 << 40)
    seen = set()
    for share in (0.85, 0.6, 0.5, 0.4, 0.3, 0.25):
        try:
            reports, state, limited = train(case, int(memory.peak * share))
        except (oomph.CannotFit, oomph.Refused):
            break
        if not limited.failures:
            continue
        expected = fault_sweep.by_hand(case, "cpu", [r.micro_batches for r in reports])
        assert all(map(torch.equal, state, expected))
        seen.add(tuple(reports[-1].rungs))
    blocks = {"long": "Transformer.blocks", "residual": "Residual.blocks"}[model]
    # As nothing is measured on a CPU: half of the blocks, then all.
    assert any(rungs and rungs[0].startswith(f"checkpoint {blocks}") for rungs in seen), seen


def test_running_statistics_of_a_batch_that_stays_whole():
    """BatchNorm's batch is not split: blocks are checkpointed before it would be refused."""
    case = dict(model="residual", optimizer="adamw", clip=None, scaler=False)
    _, _, memory = train(case, 1 << 40)
    reports, state, limited = train(case, int(memory.peak * 0.7))
    assert limited.failures and [r.micro_batches for r in reports] == [1] * 4
    assert reports[-1].rungs == ["checkpoint Residual.blocks[0:2]"]
    assert all(map(torch.equal, state, fault_sweep.by_hand(case, "cpu", [1] * 4)))
    with pytest.raises(oomph.Refused, match="layers in training normalize"):
        train(case, int(memory.peak * 0.7), rungs=[])


@pytest.mark.parametrize("model", ["transformer", "residual"])
def test_faults_under_checkpointing_leave_the_same_bits(model):
    case = dict(model=model, optimizer="adamw", clip=None, scaler=False, step=0, checkpointed=True)
    with open(os.devnull, "w") as out:
        total, tally = fault_sweep.sweep(case, "cpu", "always", fault_sweep.OnCpu(), 23, out)
    assert total > 200 and set(tally) == {"equal"}, tally


def test_a_first_forward_that_fails_teaches_nothing():
    """What a block does to its buffers is learnt from a whole forward only."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(2))
            self.fails = True

        def forward(self, x):
            x = self.a(x)
            if self.fails:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
            self.calls += 1
            return self.b(x) * self.calls.sum()

    torch.manual_seed(0)
    model = nn.Sequential(Counting(), Counting())
    plain = copy.deepcopy(model)
    rung = oomph.CheckpointBlocks()
    rung.apply(model)
    x = torch.randn(3, 4)
    with pytest.raises(torch.OutOfMemoryError):
        model(x)
    for net in (model, plain):
        for block in net:
            block.fails = False
        net(x).sum().backward()
    assert torch.equal(model[0].calls, plain[0].calls)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_survey_counts_what_only_a_block_needs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)
            )

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return (x * x).mean()

    model = Net()
    named = {name: model.get_submodule(name.partition(".")[2]) for name in repeated(model)}
    with BlockSurvey(model, named, GpuMemory(torch.device("cpu"))) as survey:
        model(torch.randn(5, 8)).backward()
    # Linear saves its input, GELU its own, the second Linear GELU's result.
    assert list(survey.inside.values()) == [2 * 5 * 32 * 4] * 3
    assert list(survey.inputs.values()) == [5 * 8 * 4] * 3
    assert survey.outside == 5 * 8 * 4 and survey.root_called
    with BlockSurvey(model, named, GpuMemory(torch.device("cpu"))) as parts:
        for _ in range(3):
            parts.begin_pass()
            model(torch.randn(5, 8)).backward()
    assert parts.inside == survey.inside and parts.inputs == survey.inputs
    assert not any(is_checkpointed(m) for m in model.modules())


def test_the_survey_keeps_nothing_alive():
    """A pass that ends in an error has no backward pass to let go of what was saved."""
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), nn.Sequential(nn.Tanh()))
    results = []
    net[0][1].register_forward_hook(lambda module, args, out: results.append(weakref.ref(out)))
    blocks = {"Sequential.0": net[0], "Sequential.1": net[1]}
    gc.collect()
    gc.disable()
    try:
        with BlockSurvey(net, blocks, GpuMemory(torch.device("cpu"))):
            net(torch.randn(2, 4))
        assert results[0]() is None
    finally:
        gc.enable()


def test_a_lever_that_finds_out_that_it_cannot_is_taken_off():
    """A block that changes its input in place cannot be computed again: the next rung, or the end."""

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x.mul_(2)))

    model = nn.Sequential(nn.Linear(4, 4), InPlace(), InPlace())
    failures = [2]

    def loss(model, x):
        if failures[0]:
            failures[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return model(x).mean()

    step = oomph.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    report = step(torch.randn(1, 4))
    # Two errors, one refusal, and the step.
    assert report.rungs == [] and len(report.errors) == 2 and failures == [0]
    assert not any(is_checkpointed(m) for m in model.modules())
    failures[0] = -1
    with pytest.raises(oomph.CannotFit, match="levers applied: none"):
        step(torch.randn(1, 4))


def test_what_is_checkpointed_already_is_left_alone():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    rung = oomph.CheckpointBlocks()
    rung.apply(model)
    with pytest.raises(Unsuitable):
        oomph.CheckpointBlocks().apply(model)
    rung.undo(model)
    model.gradient_checkpointing_enable()
    with pytest.raises(Unsuitable):
        oomph.CheckpointBlocks().apply(model)


def test_repeated_blocks():
    torchvision = pytest.importorskip("torchvision")
    resnet = torchvision.models.resnet18(weights=None)
    assert repeated(resnet) == [f"ResNet.layer{n}.{i}" for n in (1, 2, 3, 4) for i in (0, 1)]
    assert repeated(torchvision.models.vgg11(weights=None)) == []
    encoder = nn.Transformer(8, 2, 2, 2, 8).encoder
    assert repeated(encoder) == ["TransformerEncoder.layers.0", "TransformerEncoder.layers.1"]
    assert repeated(models.Residual()) == [f"Residual.blocks.{i}" for i in range(3)]


def test_rungs_are_named_by_their_modules():
    def name(*blocks):
        return ModuleLever("checkpoint", [f"GPT.blocks.{block}" for block in blocks]).name

    assert name(2) == "checkpoint GPT.blocks.2"
    assert name(2, 3) == "checkpoint GPT.blocks[2:4]"
    assert name(2, 4) == "checkpoint GPT.blocks.2 and 1 more"


def test_records_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"record\.json.*oomph run --out"):
        Ladder(record=tmp_path)
    with pytest.raises(ValueError, match="pass one of them"):
        Ladder([], record=tmp_path)


NET = """
from torch.nn.functional import gelu
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x): return x + self.b(gelu(self.a(x)))
class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return self.head(x)
loss = lambda model, x: model(x).pow(2).mean()
del model, optimizer
def job(width=512, depth=12, **options):
    global model, optimizer
    model = optimizer = None; oomph.free()
    model = Net(width, depth).cuda(); optimizer = torch.optim.AdamW(model.parameters())
    return oomph.TrainStep(model, optimizer, loss, **options)
"""


def test_as_few_blocks_as_save_what_is_missing(oomph):
    run = check(oomph, NET + """
from oomph._training.ladder import ModuleLever
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
def steps(train, length, count=3):
    return [train(torch.empty(2, length, 512)) for _ in range(count)][-1]
assert steps(job(), 4_000).rungs == []
train = job()
few = steps(train, 7_000)
assert len(few.rungs) == 1 and few.rungs[0].startswith("checkpoint Net.blocks[0:"), few
count = len(train._ladder._levers["checkpoint"])
assert 2 <= count <= 10, count
# Far fewer would not have done: figures keep a margin of a twentieth, and come in whole blocks.
plain = job(rungs=[ModuleLever("checkpoint", [f"Net.blocks.{i}" for i in range(count - 4)])] if count > 4 else [])
try: steps(plain, 7_000)
except oomph.CannotFit: print("fewer do not fit")
more = steps(job(), 12_000)
assert more.rungs[0] > few.rungs[0], (few, more)
del train, plain
train = job(256, 60)
everything = [train(torch.empty(2, 20_000, 256)) for _ in range(2)][-1]
assert everything.rungs[:2] == ["checkpoint Net.blocks[0:60]", "offload_activations Net"], everything
""")  # fmt: skip
    assert "fewer do not fit" in run.out
    assert "continuing with checkpoint Net.blocks[0:" in run.out and "saves" in run.out
    assert "a step takes about 1." in run.out and "GB/s" in run.out


def test_the_optimizers_state_goes_to_the_cpu_and_a_fresh_process_goes_on(oomph):
    check(oomph, NET + """
train = job(1024, 18)
assert sum(p.nbytes for p in model.parameters()) > 560 << 20
reports = [train(torch.empty(2, 16, 1024)) for _ in range(3)]
assert reports[-1].rungs == ["optimizer_on_cpu"] and reports[-1].attempts == 1, reports
state = optimizer.state[model.head.weight]
assert state["exp_avg"].device.type == "cpu" and state["step"] == 3
kept = train.state_dict()
train = job(1024, 18)
train.load_state_dict(kept)
report = train(torch.empty(2, 16, 1024))
assert report.rungs == ["optimizer_on_cpu"] and report.attempts == 1, report
""")  # fmt: skip


def test_the_planner_chooses_from_a_record(oomph, tmp_path):
    record = tmp_path / "run"
    step = "for _ in range(4): train(torch.empty(2, 12_000, 512))"
    run = oomph(JOB + NET + "train = job()\n" + step, "--memory", "40GiB", "--no-measure")
    assert run.status == 0, run.err
    record = record.rename(tmp_path / "record")
    check(oomph, NET + f"""
import logging
seen = []
logging.getLogger("oomph").addHandler(type("H", (logging.Handler,), dict(emit=lambda s, r: seen.append(r.getMessage())))())
train = job(rungs=oomph.Ladder(record={os.fspath(record)!r}))
{step}
assert any("planned: a step takes" in line for line in seen), seen
assert train._ladder.applied and set(train._ladder._levers) <= {{"checkpoint", "offload_activations", "optimizer_on_cpu"}}
""")  # fmt: skip


def test_offloading_rungs_leave_the_bits_of_the_plain_step(oomph):
    """The script for a real GPU, with values that the virtual GPU computes."""
    run = oomph(f"""
import sys
sys.path[:0] = [{os.path.join(ROOT, "bench", "gpu")!r}, {os.path.join(ROOT, "bench", "library")!r}]
import models, torch, training_rungs as rungs
torch.set_num_threads(1)
def job(small):
    model, batch, loss = models.transformer("cpu")
    return model.cuda(), batch, loss
rungs.JOBS["transformer"], rungs.STEPS = job, 3
plain, expected = rungs.run("transformer", True, rungs.Training.plain)
losses = [expected[f"loss {{i}}"].item() for i in range(3)]
assert all(losses) and len(set(losses)) == 3, losses
offload = [dict(name="offload_activations", modules=["Transformer"]), dict(name="optimizer_on_cpu")]
row, state = rungs.run("transformer", True, lambda training: training.train_step(offload))
assert len(row["rungs"]) == 2 and not rungs.compare(expected, state), (row, rungs.compare(expected, state))
state["loss 2"] += 1e-3
assert rungs.compare(expected, state) == ["loss 2"]
print("checked")
""", "--no-measure", "--compute", "4GiB")  # fmt: skip
    assert "checked" in run.out, run.err
