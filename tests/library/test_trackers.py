"""`oomph.watch(log_to=…)`: what scripts log with gets the numbers, through its own interface."""

import json
import struct
from types import SimpleNamespace

import oomph
import pytest
import torch


def watched(**options):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with oomph.watch(model, optimizer, every=2, **options):
        for _ in range(4):
            model(torch.zeros(1, 4)).sum().backward()
            optimizer.step()


def test_each_tracker_gets_the_numbers_in_its_own_way():
    got = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: got.append(("scalar", name, step))
    )
    logger = SimpleNamespace(
        log_metrics=lambda numbers, step: got.append(("metrics", *numbers, step))
    )
    run = SimpleNamespace(
        define_metric=lambda name, **options: got.append(("axis", name, *options.values())),
        log=lambda numbers: got.append(("run", *numbers, numbers["memory/step"])),
    )
    watched(log_to=[writer, logger, run, lambda numbers: got.append(("function", *numbers))])
    name = "memory/seconds_per_step"
    assert got[:2] == [("axis", "memory/step", True), ("axis", "memory/*", "memory/step")]
    for step, entries in ((2, got[2:6]), (4, got[6:10])):
        assert entries == [
            ("scalar", name, step),
            ("metrics", name, step),
            ("run", name, "memory/step", step),
            ("function", name),
        ]


def test_what_cannot_log_is_refused_at_once():
    with pytest.raises(TypeError, match=r"log_to: expected a SummaryWriter, .* found 'wandb'"):
        watched(log_to="wandb")


REAL = """
import json, os
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_TRACKING_URI="sqlite:///mlflow.db")
import mlflow, oomph, torch, wandb
from torch.utils.tensorboard import SummaryWriter

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
writer, run = SummaryWriter("events"), wandb.init(project="p", dir=".")
seen = []
with mlflow.start_run() as started:
    with oomph.watch(model, optimizer, every=2, log_to=[writer, run, mlflow, seen.append]):
        for step in range(4):
            model(torch.zeros(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log({"loss": 0.0}, step=10 * step)  # its own steps stay its own
history = mlflow.MlflowClient().get_metric_history(started.info.run_id, "memory/category/optimizer_state")
writer.close()
files = run.dir
run.finish()
with open("seen.json", "w") as file:
    json.dump({"seen": seen, "mlflow": [(m.step, m.value) for m in history], "wandb": files}, file)
"""


def records(data):
    """The records of a run of W&B: LevelDB's log behind seven bytes, parts of records in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of one, the last part of one
            yield whole
            whole = b""


def test_real_trackers(oomph, tmp_path, started):
    """Needs `pip install tensorboard wandb mlflow`, which nothing else here does."""
    pytest.importorskip("mlflow")
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")

    run = oomph(REAL, "--no-measure")
    assert run.status == 0, run.err
    result = json.loads((tmp_path / "seen.json").read_text())
    states = [numbers["memory/category/optimizer_state"] for numbers in result["seen"]]
    # Two values a weight, and a step for each of the two tensors.
    assert [round(state / (1024 * 1025 * 8), 2) for state in states] == [1.0, 1.0, 1.0]
    steps = [2, 4, 4]  # the last when the block ends

    events = accumulators.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    scalars = events.Scalars("memory/category/optimizer_state")
    assert [scalar.step for scalar in scalars] == steps
    assert [scalar.value for scalar in scalars] == states
    assert sorted(map(tuple, result["mlflow"])) == sorted(zip(steps, states))

    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged = []
    for data in records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        numbers = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
        if "memory/step" in numbers:
            logged.append((numbers["memory/step"], numbers["memory/category/optimizer_state"]))
    assert logged == list(zip(steps, states))
