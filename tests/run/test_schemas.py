"""What commands write is as its schema says. Where tests read documents of `run`, `fit`, `check` and `drift`, `support.schemas` validates them, too."""

import json
import pathlib

import pytest

from tests.support import schemas
from tests.support.command import ROOT, command

FIXTURES = pathlib.Path(ROOT, "fixtures")
SNAPSHOT, OTHER = (
    FIXTURES / "oom" / f"{name}.pickle.xz" for name in ("loss_accumulate", "eval_grad")
)
CONFIG = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}'
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.63 GiB"
    " of which 1.50 GiB is free."
)


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ("oomph.explain/1", ["explain", "--no-report", SNAPSHOT]),
        ("oomph.explain/1", ["explain", "--no-report", "train.log"]),
        ("oomph.explain-ranks/1", ["explain", "--no-report", SNAPSHOT, OTHER]),
        ("oomph.diff/1", ["diff", "--no-report", SNAPSHOT, OTHER]),
        ("oomph.replay/1", ["replay", SNAPSHOT]),
        ("oomph.lint/1", ["lint", "train.py"]),
        ("oomph.estimate/1", ["estimate", "--train", "--gpu", "t4", "config.json"]),
        ("oomph.gpus/1", ["gpus"]),
    ],
)
def test_what_is_written_is_as_its_schema_says(tmp_path, format, words):
    (tmp_path / "train.log").write_text(MESSAGE)
    (tmp_path / "train.py").write_text(
        "losses = []\nfor x in loader:\n    losses.append(model(x).sum())\n"
    )
    (tmp_path / "config.json").write_text(CONFIG)
    done = command(tmp_path, *words, "--json", "-")
    assert done.stdout, done.stderr
    assert schemas.read(done.stdout)["format"] == format


def test_what_a_run_leaves_is_as_its_schema_says(oomph, tmp_path):
    oomph("import torch; torch.ones(1).cuda()", "-q")
    for name, format in (("settings", "oomph.settings/1"), ("summary", "oomph.run/1")):
        text = (tmp_path / "run" / f"{name}.json").read_text()
        assert schemas.read(text)["format"] == format


def test_an_exported_report_is_as_its_schema_says(tmp_path):
    done = command(tmp_path, "report", SNAPSHOT, "--export", "json", "--out", "report.json")
    assert done.returncode == 0, done.stderr
    assert schemas.read((tmp_path / "report.json").read_text())["peak"]["bytes"] > 0


def test_a_field_that_no_schema_has_is_found():
    document = json.loads(json.dumps(dict(format="oomph.tests/1", gpu="t4", tests={})))
    schemas.read(json.dumps(document))
    with pytest.raises(AssertionError, match="other"):
        schemas.read(json.dumps({**document, "other": 1}))
    with pytest.raises(AssertionError, match="gpu"):
        schemas.read(json.dumps(dict(format="oomph.tests/1", tests={})))
