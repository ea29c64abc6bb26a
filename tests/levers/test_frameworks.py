"""Levers under Hugging Face's `Trainer`, Lightning and accelerate: training as without them."""

import pytest

from tests.support.levers import distance, run

END = "\n    out = [p.detach() for p in model.parameters()]\n"

TRAINER = """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config)
    rows = []
    for i in range(22):
        ids = torch.randint(0, 50, (12,)); labels = ids.clone(); labels[:i % 9] = -100
        rows.append({"input_ids": ids, "labels": labels})
    sizes = []
    model.transformer.register_forward_pre_hook(lambda m, a, k: sizes.append(len(a[0] if a else k["input_ids"])), with_kwargs=True)
    trainer = Trainer(model=model, train_dataset=rows, args=TrainingArguments(
        DIRECTORY, per_device_train_batch_size=8, num_train_epochs=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_steps=1, learning_rate=1e-2, seed=3, OPTIONS))
    trainer.train()
    steps = trainer.state.global_step
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    out = [[p.detach() for p in model.parameters()], losses, steps, sizes]
"""


def trainer(tmp_path, options, *levers, code=TRAINER):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    code = code.replace("DIRECTORY", repr(str(tmp_path))).replace("OPTIONS", options)
    return run(tmp_path, code, *levers)


@pytest.mark.parametrize(
    "options", ["max_grad_norm=0.1", "gradient_accumulation_steps=2", "optim='sgd'"]
)
def test_micro_batches_under_trainer(tmp_path, options):
    plain = trainer(tmp_path, options)
    split = trainer(tmp_path, options, ("micro_batch", {"parts": 3}))
    assert split.refusal is None, split.refusal
    assert max(split.out[3]) == 3 and max(plain.out[3]) == 8  # parts of 8 are 3, 3, 2
    assert split.out[2] == plain.out[2]  # as many steps
    # Adam's first steps divide gradients by themselves: rounding grows where they are near zero.
    assert distance(split.out[0], plain.out[0]) < (1e-6 if "sgd" in options else 1e-4)
    assert distance(split.out[1], plain.out[1]) < 1e-4


def test_a_model_that_takes_no_counts_under_trainer(tmp_path):
    """The loss is a mean over the targets of what the model got."""
    code = TRAINER.replace(
        "    model = GPT2LMHeadModel(config)\n",
        """
    class Model(GPT2LMHeadModel):
        accepts_loss_kwargs = False
        def forward(self, input_ids, labels):
            logits = super().forward(input_ids=input_ids).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return {"loss": loss, "logits": logits}
    model = Model(config)
""",
    )
    plain = trainer(tmp_path, "optim='sgd'", code=code)
    split = trainer(tmp_path, "optim='sgd'", ("micro_batch", {"parts": 3}), code=code)
    assert split.refusal is None and max(split.out[3]) == 3
    assert distance(split.out[0], plain.out[0]) < 1e-6


def test_precision_and_micro_batches_under_trainer(tmp_path):
    plain = trainer(tmp_path, "optim='sgd', max_grad_norm=0.1")
    for dtype in ("bf16", "fp16"):
        levers = [("micro_batch", {"parts": 2}), ("mixed_precision", {"dtype": dtype})]
        mixed = trainer(tmp_path, "optim='sgd', max_grad_norm=0.1", *levers)
        assert mixed.refusal is None and all(r["applied"] for r in mixed.levers.values())
        assert 0 < distance(mixed.out[0], plain.out[0]) < 2e-2
    own = trainer(tmp_path, "bf16=True", ("mixed_precision", {"dtype": "bf16"}))
    assert own.levers["mixed_precision"]["applied"] == 0


def test_small_levers_under_trainer(tmp_path):
    plain = trainer(tmp_path, "optim='adamw_torch', max_grad_norm=0.1")
    levers = [
        ("optimizer_step", {"kind": "single_tensor"}),
        ("attention", {"backend": "flash"}),
        ("no_grad_eval", {}),
    ]
    other = trainer(tmp_path, "optim='adamw_torch', max_grad_norm=0.1", *levers)
    assert other.levers["optimizer_step"]["applied"] == 1
    assert distance(other.out[0], plain.out[0]) < 1e-4


def test_eager_models_are_set_to_sdpa(tmp_path):
    code = TRAINER.replace(
        "GPT2LMHeadModel(config)",
        "GPT2LMHeadModel._from_config(config, attn_implementation='eager')",
    )
    plain = trainer(tmp_path, "optim='sgd'", code=code)
    other = trainer(tmp_path, "optim='sgd'", ("attention", {"backend": "flash"}), code=code)
    assert other.levers["attention"]["applied"] > 0
    assert distance(other.out[0], plain.out[0]) < 1e-5


LIGHTNING = """
    import logging, warnings
    warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
    import lightning
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(1)
    x, y = torch.randn(23, 8), torch.randint(0, 5, (23,))
    y[torch.rand(23) < 0.3] = -100
    sizes = []
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
        def training_step(self, batch, index):
            a, b = batch
            sizes.append(len(a))
            loss = F.cross_entropy(self.net(a), b)
            self.log("loss", loss)
            return loss
        def validation_step(self, batch, index):
            assert len(batch[0]) in (10, 3)
            self.log("checked", F.cross_entropy(self.net(batch[0]), batch[1]))
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
    model = Task()
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, OPTIONS)
    trainer.fit(model, loader, DataLoader(TensorDataset(x, y), batch_size=10))
    out = [[p.detach() for p in model.parameters()], trainer.global_step, sizes]
"""


def lightning(tmp_path, options, *levers, code=LIGHTNING):
    pytest.importorskip("lightning")
    return run(tmp_path, code.replace("OPTIONS", options), *levers)


@pytest.mark.parametrize("options", ["gradient_clip_val=0.05", "num_sanity_val_steps=0"])
def test_micro_batches_under_lightning(tmp_path, options):
    plain = lightning(tmp_path, options)
    split = lightning(tmp_path, options, ("micro_batch", {"parts": 3}))
    assert split.refusal is None, split.refusal
    assert split.out[1] == plain.out[1] and max(split.out[2]) == 4 and max(plain.out[2]) == 10
    assert distance(split.out[0], plain.out[0]) < 1e-6


@pytest.mark.parametrize("ignored", [False, True])
def test_accumulation_under_lightning(tmp_path, ignored):
    code = LIGHTNING if ignored else LIGHTNING.replace("y[torch.rand(23) < 0.3] = -100", "pass")
    plain = lightning(tmp_path, "accumulate_grad_batches=2", code=code)
    split = lightning(
        tmp_path, "accumulate_grad_batches=2", ("micro_batch", {"parts": 3}), code=code
    )
    assert split.refusal is None, split.refusal
    assert split.out[1] == plain.out[1] and distance(split.out[0], plain.out[0]) < 1e-6


def test_precision_under_lightning(tmp_path):
    plain = lightning(tmp_path, "gradient_clip_val=0.05")
    for dtype in ("bf16", "fp16"):
        levers = [("micro_batch", {"parts": 3}), ("mixed_precision", {"dtype": dtype})]
        mixed = lightning(tmp_path, "gradient_clip_val=0.05", *levers)
        assert mixed.refusal is None and mixed.levers["mixed_precision"]["applied"]
        assert mixed.out[1] == plain.out[1] and 0 < distance(mixed.out[0], plain.out[0]) < 2e-2
    own = lightning(tmp_path, "precision='bf16-mixed'", ("mixed_precision", {"dtype": "bf16"}))
    assert own.levers["mixed_precision"]["applied"] == 0


def test_manual_optimization_is_refused(tmp_path):
    code = LIGHTNING.replace(
        "super().__init__()\n", "super().__init__(); self.automatic_optimization = False\n"
    )
    result = lightning(tmp_path, "", ("micro_batch", {"parts": 3}), code=code)
    assert "manual optimization" in result.refusal


ACCELERATE = """
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(1)
    x, y = torch.randn(23, 8), torch.randint(0, 5, (23,))
    accelerator = Accelerator(cpu=True, OPTIONS)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    sizes = []
    for epoch in range(2):
        for a, b in loader:
            with accelerator.accumulate(model):
                sizes.append(len(a))
                loss = F.cross_entropy(model(a), b)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step(); schedule.step(); optimizer.zero_grad()
    out = [[p.detach() for p in model.parameters()], schedule.get_last_lr(), sizes]
"""


def test_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    code = ACCELERATE.replace("OPTIONS", "")
    plain, split = run(tmp_path, code), run(tmp_path, code, ("micro_batch", {"parts": 3}))
    assert split.refusal is None, split.refusal
    assert split.out[1] == plain.out[1] and max(split.out[2]) == 4
    assert distance(split.out[0], plain.out[0]) < 1e-6


@pytest.mark.parametrize("targets", ["", "y[::3] = -100; y[11:15] = -100"])
def test_accelerate_accumulates(tmp_path, targets):
    pytest.importorskip("accelerate")
    code = ACCELERATE.replace("OPTIONS", "gradient_accumulation_steps=2").replace(
        "accelerator = ", targets + "\n    accelerator = "
    )
    plain, split = run(tmp_path, code), run(tmp_path, code, ("micro_batch", {"parts": 3}))
    assert split.refusal is None, split.refusal
    assert split.out[1] == plain.out[1] and max(split.out[2]) == 4
    assert distance(split.out[0], plain.out[0]) < 1e-6


@pytest.mark.parametrize("parts", [3, 10])
@pytest.mark.parametrize("reduction", ["sum", "sum by samples"])
def test_divisions_by_frameworks_count_nothing(tmp_path, reduction, parts):
    """They divide each loss by one where nothing accumulates, which parts of one sample are as many as."""
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    loss = "F.cross_entropy(model(a), b, reduction='sum')" + " / len(a)" * (reduction != "sum")
    code = ACCELERATE.replace("OPTIONS", "").replace("F.cross_entropy(model(a), b)", loss)
    code = code.replace("lr=0.1", "lr=0.01")
    plain, split = run(tmp_path, code), run(tmp_path, code, ("micro_batch", {"parts": parts}))
    assert split.refusal is None and max(split.out[2]) == -(-10 // parts)
    assert distance(split.out[0], plain.out[0]) < 1e-6
    inside = loss.replace("model(a)", "self.net(a)")
    code = LIGHTNING.replace(
        "F.cross_entropy(self.net(a), b)\n            self.log", inside + "\n            self.log"
    )
    code = code.replace("lr=0.1", "lr=0.01")
    assert inside in code
    plain = lightning(tmp_path, "", code=code)
    split = lightning(tmp_path, "", ("micro_batch", {"parts": parts}), code=code)
    assert split.refusal is None and distance(split.out[0], plain.out[0]) < 1e-6


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
def test_lightning_logs_what_the_batch_would(tmp_path, reduce):
    code = LIGHTNING.replace("y[torch.rand(23) < 0.3] = -100", "pass").replace(
        'self.log("loss", loss)',
        f"""value = {{"mean": loss, "sum": (b == 1).float().sum(), "max": a.max()}}["{reduce}"]
            self.log("it", value, on_step=True, on_epoch=True, reduce_fx="{reduce}")""",
    )
    code += "    out += [float(trainer.callback_metrics[n]) for n in ('it_step', 'it_epoch')]\n"
    plain = lightning(tmp_path, "", code=code)
    split = lightning(tmp_path, "", ("micro_batch", {"parts": 3}), code=code)
    assert split.refusal is None and split.out[3:] == pytest.approx(plain.out[3:], rel=1e-5)
