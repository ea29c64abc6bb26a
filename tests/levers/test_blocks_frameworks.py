"""The levers of blocks and optimizers under Hugging Face's Trainer and Lightning."""

import pytest

from tests.support.levers import distance, run, same

TRAINER = """
    import transformers
    from oomph.levers import chunked_cross_entropy as lever
    lever.VOCABULARY, lever.MANY = 16, 64
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=80, n_embd=16, n_layer=3, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    data = [dict(input_ids=row, labels=row) for row in torch.randint(80, (12, 10))]
    arguments = transformers.TrainingArguments(
        output_dir=directory, max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        max_grad_norm=clip, logging_steps=1, save_strategy="no", disable_tqdm=True, learning_rate=1e-2,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    out = [[p.detach() for p in model.parameters()], [x["loss"] for x in trainer.state.log_history if "loss" in x]]
"""

BLOCKS = [f"GPT2LMHeadModel.transformer.h.{i}" for i in range(3)]


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    names = dict(directory=str(tmp_path), clip=0)
    plain = run(tmp_path, TRAINER, **names)
    exact = run(
        tmp_path, TRAINER, ("checkpoint", {"modules": BLOCKS}), ("step_in_backward", {}), **names
    )
    assert exact.refusal is None, exact.refusal
    assert same(exact.out, plain.out)
    assert exact.levers["checkpoint"]["applied"] == 3
    assert exact.levers["step_in_backward"]["applied"] > 0
    rounded = run(
        tmp_path,
        TRAINER,
        ("chunked_cross_entropy", {"chunks": 4}),
        ("optimizer_on_cpu", {}),
        **names,
    )
    assert distance(rounded.out[0], plain.out[0]) < 1e-4
    assert rounded.levers["chunked_cross_entropy"]["applied"] == 3
    clipped = run(
        tmp_path, TRAINER, ("step_in_backward", {}), directory=str(tmp_path), clip=1.0
    )  # fmt: skip
    assert "max_grad_norm=0" in clipped.refusal


LIGHTNING = """
    import logging, warnings
    import lightning
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*[
                nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)
            ])
        def forward(self, x):
            return self.blocks(x)
        def training_step(self, batch, index):
            return self(batch).pow(2).mean()
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)
    torch.manual_seed(1)
    task = Task()
    loader = torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory,
    )
    trainer.fit(task, loader)
    out = list(task.state_dict().values())
"""


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    plain = run(tmp_path, LIGHTNING, directory=str(tmp_path))
    modules = [f"Task.blocks.{i}" for i in range(3)]
    # Lightning calls the training step, of which the model's first call comes from.
    inner = [f"Sequential.{i}" for i in range(3)]
    changed = run(
        tmp_path,
        LIGHTNING,
        ("checkpoint", {"modules": modules + inner}),
        ("step_in_backward", {}),
        directory=str(tmp_path),
    )
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    assert changed.levers["checkpoint"]["applied"] == 3
    assert changed.levers["step_in_backward"]["applied"] > 0
