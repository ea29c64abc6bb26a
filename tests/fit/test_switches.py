"""Plans of jobs under frameworks name the framework's own switches, and so do their patches, which have run."""

import subprocess

import pytest

from tests.support.command import command, fit

TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

    words = "--output_dir out --per_device_train_batch_size 8 --max_steps 4 --report_to none --save_strategy no --disable_tqdm true"
    (given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words.split())
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=256, n_embd=256, n_layer=2, n_head=4))
    rows = [dict(input_ids=row, labels=row.clone()) for row in torch.randint(1000, (32, 256))]
    Trainer(model=model, args=given, train_dataset=rows).train()
"""

LIGHTNING = """
    import lightning, torch, warnings
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    warnings.filterwarnings("ignore")
    QUIET = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)))

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(8192 * 3, 1024), torch.zeros(8192 * 3, dtype=torch.long)), batch_size=8192)
    lightning.Trainer(max_epochs=1, **QUIET).fit(Task(), data)
"""

ACCELERATE = """
    import torch
    from accelerate import Accelerator
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    settings = {"split_batches": True}
    accelerator = Accelerator(step_scheduler_with_optimizer=False)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(8192 * 3, 1024)), batch_size=8192)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def planned(tmp_path, code, lever, *options):
    """The plan's line, the changed script's text, and what a run with the plan says; the change is taken out again."""
    found = fit(tmp_path, code, "--allow", lever, "--write", *options)
    assert found.status == 0, found.err + found.out
    assert found.levers == [lever] and found.json["patch_file"], found.out
    changed = (tmp_path / "script.py").read_text()
    assert command(tmp_path, "fit", "--undo", "script.py").returncode == 0
    subprocess.run(["git", "apply", "--check", "oomph-plan.patch"], cwd=tmp_path, check=True)
    plan = (tmp_path / "oomph-plan.toml").read_text()
    switch = found.chosen["switches"][lever]
    assert "same as" in found.out and switch.partition(": ")[2].split()[0] in found.out
    assert f"[planned.switches]\n{lever} = " in plan
    return changed, switch


def test_a_trainers_arguments(tmp_path):
    pytest.importorskip("accelerate")
    changed, switch = planned(tmp_path, TRAINER, "micro_batch", "--memory", "300MiB")
    assert switch.startswith("TrainingArguments: per_device_train_batch_size 8 -> ")
    parts = 8 // int(switch.split(" -> ")[1].split()[0])
    assert f"given.per_device_train_batch_size // {parts}" in changed
    assert f"given.gradient_accumulation_steps * {parts}" in changed


def test_a_trainers_layers(tmp_path):
    pytest.importorskip("accelerate")
    found = fit(tmp_path, TRAINER, "--memory", "310MiB", "--allow", "micro_batch,checkpoint", "--choose", "least-memory")  # fmt: skip
    assert found.status == 0, found.err + found.out
    assert sorted(found.levers) == ["checkpoint", "micro_batch"]
    assert (
        found.chosen["switches"]["checkpoint"] == "TrainingArguments: gradient_checkpointing=True"
    )
    patch = (tmp_path / "oomph-plan.patch").read_text()
    assert "gradient_checkpointing=True" in patch and "get_submodule" not in patch


def test_lightnings_arguments(tmp_path):
    pytest.importorskip("lightning")
    changed, switch = planned(tmp_path, LIGHTNING, "micro_batch", "--memory", "1150MiB")
    assert switch.startswith("Trainer: accumulate_grad_batches 1 -> ")
    assert '"accumulate_grad_batches"' in changed or "accumulate_grad_batches=" in changed
    assert "batch_size=8192)" not in changed


def test_accelerates_arguments(tmp_path):
    pytest.importorskip("accelerate")
    options = ("--memory", "1400MiB", "--choose", "fastest")
    changed, switch = planned(tmp_path, ACCELERATE, "mixed_precision", *options)
    assert switch == 'Accelerator: mixed_precision="bf16"'
    assert 'step_scheduler_with_optimizer=False, mixed_precision="bf16")' in changed
