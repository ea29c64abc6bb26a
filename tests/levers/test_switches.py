"""A framework's own switch does what a lever does, where that comes to the same."""

import pytest

from tests.levers.test_frameworks import ACCELERATE, LIGHTNING, TRAINER, lightning, trainer
from tests.support.levers import distance, run, same

LAYERS = [f"GPT2LMHeadModel.transformer.h.{i}" for i in range(2)]
ARGUMENTS = "\n    out += [trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps]\n"


def test_a_trainer_accumulates_smaller_batches(tmp_path):
    """Targets are ignored, and the last batch is smaller."""
    options = "optim='sgd', max_grad_norm=0.1, gradient_accumulation_steps=2"
    code = TRAINER + ARGUMENTS
    plain = trainer(tmp_path, options, code=code)
    split = trainer(tmp_path, options, ("micro_batch", {"parts": 4}), code=code)
    assert split.refusal is None, split.refusal
    row = split.levers["micro_batch"]
    assert row["switch"] == (
        "TrainingArguments: per_device_train_batch_size 8 -> 2 with gradient_accumulation_steps 2 -> 8"
    )
    assert max(split.out[3]) == 2 and max(plain.out[3]) == 8
    assert split.out[2] == plain.out[2]  # as many steps
    assert row["applied"] == len(plain.out[3])  # batches
    assert distance(split.out[0], plain.out[0]) < 1e-6
    assert distance(split.out[1], plain.out[1]) < 1e-5
    assert split.out[4:] == plain.out[4:] == [8, 2]  # the script's own arguments


@pytest.mark.parametrize(
    "change, options",
    [
        # Its loss is a mean over what it got, whatever the Trainer counts.
        ("from transformers import GPT2Config, GPT2ForSequenceClassification as GPT2LMHeadModel", ""),
        ("", "dataloader_drop_last=True"),
        ("class Trainer(Trainer):\n        def compute_loss(self, model, inputs, **k): return model(**inputs).loss", ""),
    ],
)  # fmt: skip
def test_the_lever_splits_where_accumulation_is_another_loss(tmp_path, change, options):
    code = TRAINER.replace(
        "    torch.manual_seed(0)\n", f"    {change or 'pass'}\n    torch.manual_seed(0)\n"
    )
    if "Classification" in change:
        code = code.replace("vocab_size=50", "vocab_size=50, pad_token_id=0, num_labels=3")
        code = code.replace('"labels": labels', '"labels": i % 3')
    options = "optim='sgd', max_grad_norm=0" + (", " + options if options else "")
    plain = trainer(tmp_path, options, code=code)
    split = trainer(tmp_path, options, ("micro_batch", {"parts": 4}), code=code)
    assert split.refusal is None, split.refusal
    assert "switch" not in split.levers["micro_batch"]
    assert max(split.out[3]) == 2 and split.out[2] == plain.out[2]
    assert distance(split.out[0], plain.out[0]) < 1e-6
    if "Classification" in change:
        smaller = code.replace("batch_size=8", "batch_size=2")
        own = trainer(tmp_path, options + ", gradient_accumulation_steps=4", code=smaller)
        assert distance(own.out[0], plain.out[0]) > 1e-3


def test_a_loss_that_is_no_sum_is_found_at_the_first_step(tmp_path):
    """It looks like transformers' own, and is a mean."""
    own = """
    def ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch=None, **kwargs):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    model.loss_function = ForCausalLMLoss
    rows = []
"""
    code = TRAINER.replace("    rows = []\n", own)
    split = trainer(tmp_path, "optim='sgd'", ("micro_batch", {"parts": 4}), code=code)
    assert "gradient_accumulation_steps is not the same" in split.refusal


def test_a_trainer_checkpoints_all_layers(tmp_path):
    code = TRAINER + "\n    out += [[m.gradient_checkpointing for m in model.transformer.h]]\n"
    plain = trainer(tmp_path, "optim='sgd'", code=code)
    own = trainer(tmp_path, "optim='sgd'", ("checkpoint", {"modules": LAYERS}), code=code)
    assert own.refusal is None and same(own.out[0], plain.out[0]) and own.out[1] == plain.out[1]
    assert own.out[4] == [True, True] and plain.out[4] == [False, False]
    row = own.levers["checkpoint"]
    assert (row["applied"], row["switch"]) == (2, "TrainingArguments: gradient_checkpointing=True")
    # One of two layers is what the lever alone can do.
    one = trainer(tmp_path, "optim='sgd'", ("checkpoint", {"modules": LAYERS[:1]}), code=code)
    assert same(one.out[0], plain.out[0]) and one.out[4] == [False, False]
    assert one.levers["checkpoint"]["applied"] == 1 and "switch" not in one.levers["checkpoint"]


BF16 = ("mixed_precision", {"dtype": "bf16"})


def test_a_trainer_computes_in_bf16(tmp_path):
    given = trainer(tmp_path, "optim='sgd', bf16=True")
    own = trainer(tmp_path, "optim='sgd'", BF16)
    assert same(own.out[0], given.out[0]) and own.out[1] == given.out[1]
    assert own.levers["mixed_precision"]["switch"] == "TrainingArguments: bf16=True"


def test_lightning_computes_in_bf16(tmp_path):
    given = lightning(tmp_path, "precision='bf16-mixed'")
    own = lightning(tmp_path, "", BF16)
    assert same(own.out[0], given.out[0])
    assert own.levers["mixed_precision"]["switch"] == 'Trainer: precision="bf16-mixed"'
    # What the script says stays, and the lever does it.
    said = lightning(tmp_path, "precision='32-true'", BF16)
    assert (
        said.levers["mixed_precision"]["applied"] and "switch" not in said.levers["mixed_precision"]
    )


def test_accelerate_computes_in_bf16(tmp_path):
    pytest.importorskip("accelerate")
    given = run(tmp_path, ACCELERATE.replace("OPTIONS", "mixed_precision='bf16'"))
    own = run(tmp_path, ACCELERATE.replace("OPTIONS", ""), BF16)
    assert same(own.out[0], given.out[0])
    assert own.levers["mixed_precision"]["switch"] == 'Accelerator: mixed_precision="bf16"'


@pytest.mark.parametrize("targets", ["", "y[torch.rand(20) < 0.3] = -100"])
def test_whether_lightnings_accumulation_is_the_same(tmp_path, targets):
    code = LIGHTNING.replace("23, ", "20, ").replace("(23,)", "(20,)").replace("(10, 3)", "(10,)")
    code = code.replace("y[torch.rand(23) < 0.3] = -100", targets or "pass")
    split = lightning(
        tmp_path, "accumulate_grad_batches=2", ("micro_batch", {"parts": 2}), code=code
    )
    words = "Trainer: accumulate_grad_batches 2 -> 4 with batch_size 10 -> 5"
    assert split.levers["micro_batch"].get("switch") == (None if targets else words)
    plain = lightning(tmp_path, "accumulate_grad_batches=2", code=code)
    argued = lightning(
        tmp_path,
        "accumulate_grad_batches=4",
        code=code.replace(
            "loader = DataLoader(TensorDataset(x, y), batch_size=10)",
            "loader = DataLoader(TensorDataset(x, y), batch_size=5)",
        ),
    )
    assert (distance(argued.out[0], plain.out[0]) < 1e-6) == (not targets)
