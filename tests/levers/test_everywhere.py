"""Each training lever under a plain loop, Hugging Face's Trainer and Lightning: training as without it.

One job in three frameworks: a GPT-2 of three blocks, evaluation and saving while it trains, and then a second
run from a saved checkpoint. What must be the same is all that such a job leaves: weights, losses, evaluations,
learning rates, and the files' keys and values.
"""

import pytest

from tests.support.frameworks import FRAMEWORKS, job
from tests.support.levers import unlike
from tests.support.plans import plan

BLOCK = "GPT2LMHeadModel.transformer.h"
KEPT = [
    ("checkpoint", {"modules": [f"{BLOCK}.0"]}),
    ("recompute", {"modules": [f"{BLOCK}.1.{part}" for part in ("ln_1", "ln_2", "mlp.act")]}),
    ("offload_activations", {"modules": [f"{BLOCK}.2"]}),
    ("inplace_activations", {"modules": [f"{BLOCK}.{i}.mlp.dropout" for i in range(3)]}),
    ("no_grad_eval", {}),
    ("set_to_none", {}),
]
"""Levers that leave the bits as they are."""
ROUNDED = [
    ("micro_batch", {"parts": 2}),
    ("fused_modules", {"modules": [f"{BLOCK}.{i}.mlp.act" for i in range(3)]}),
    ("optimizer_step", {"kind": "single_tensor"}),
    ("attention", {"backend": "flash"}),
    ("chunked_cross_entropy", {"chunks": 4}),
]
"""Levers that leave the mathematics."""
SETTINGS = {
    "usual": {},
    # A plain loop accumulates in its own way, which tests of levers have each for itself.
    "accumulating and clipping": {"accumulate": 2, "clip": 0.1},
    "bf16": {"bf16": True},
}
CASES = [
    pytest.param(framework, setting, id=f"{framework}, {name}")
    for framework in FRAMEWORKS
    for name, setting in SETTINGS.items()
]


@pytest.mark.parametrize(("framework", "setting"), CASES)
def test_exact_levers(tmp_path, framework, setting):
    levers = list(KEPT)
    if not setting.get("clip"):
        levers.append(("step_in_backward", {}))  # refused otherwise
    plain = job(tmp_path, framework, dropout=0.1, **setting)
    other = job(tmp_path, framework, *levers, dropout=0.1, **setting)
    idle = [name for name, lever in other.levers.items() if not lever["applied"]]
    # Trainer frees gradients itself.
    assert idle == (["set_to_none"] if framework == "trainer" else []), other.levers
    different = unlike(other.out, plain.out)
    if levers[-1][0] == "step_in_backward":
        assert framework != "trainer" or "gradient norm" in other.levers["step_in_backward"]["note"]
        different = [place for place in different if "grad_norm" not in place]
    assert different == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_save_on_cpu(tmp_path, framework):
    # Not with those above: it takes what they would.
    plain = job(tmp_path, framework, dropout=0.1)
    other = job(tmp_path, framework, ("save_on_cpu", {}), dropout=0.1)
    assert other.levers["save_on_cpu"]["applied"] > 0
    assert unlike(other.out, plain.out) == []


@pytest.mark.parametrize(("framework", "setting"), CASES)
def test_levers_to_rounding(tmp_path, framework, setting):
    setting = dict(setting, adam=False)
    if framework == "lightning":
        # It takes the mean of several batches' means, which micro-batches refuse where counts differ.
        setting["ignored"] = not setting.get("accumulate")
    plain = job(tmp_path, framework, **setting)
    other = job(tmp_path, framework, *ROUNDED, **setting)
    idle = [name for name, lever in other.levers.items() if not lever["applied"]]
    assert idle == [], other.levers
    *results, sizes = other.out
    *expected, whole = plain.out
    assert sizes == {size // 2 for size in whole}
    # Lightning's log takes a part's mean over targets for as much as it has samples.
    different = unlike(results, expected, 3e-2 if setting.get("bf16") else 1e-4)
    assert [place for place in different if framework != "lightning" or "//loss" not in place] == []
    assert unlike(results, expected, 3e-2) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_split_calls_with_all_others(tmp_path, framework):
    # Without dropout, whose numbers are others, nothing could work in place.
    left_out = ("set_to_none", "inplace_activations", "micro_batch")
    levers = [lever for lever in KEPT + ROUNDED if lever[0] not in left_out]
    setting = dict(adam=False, clip=0.1)
    plain = job(tmp_path, framework, **setting)
    other = job(tmp_path, framework, ("split_forward", {"parts": 2}), *levers, **setting)
    idle = [name for name, lever in other.levers.items() if not lever["applied"]]
    assert idle == [], other.levers
    assert unlike(other.out[:-1], plain.out[:-1], 1e-4) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_mixed_precision(tmp_path, framework):
    plain = job(tmp_path, framework, adam=False, clip=0.1)
    other = job(tmp_path, framework, ("mixed_precision", {"dtype": "bf16"}), adam=False, clip=0.1)
    assert other.levers["mixed_precision"]["applied"] > 0
    assert unlike(other.out, plain.out, 1e-7) != []
    assert unlike(other.out, plain.out, 5e-2) == []


ON_GPU = """
    import logging, sys, warnings
    warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
    import lightning, torch, transformers
    from oomph._recorder.facts import allows_tf32
    def new_model():
        torch.manual_seed(1)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=512, n_embd=512, n_layer=4, n_head=4, n_positions=128))
    rows = [dict(input_ids=row, labels=row) for row in torch.randint(512, (32, 128))]
    directory = sys.argv[1]
    torch.backends.cudnn.benchmark = True
    for run in range(2):
        arguments = transformers.TrainingArguments(
            output_dir=directory, max_steps=2 + 2 * run, per_device_train_batch_size=16, report_to=[], tf32=True,
            disable_tqdm=True, save_strategy="steps", save_steps=2, logging_strategy="no")
        trainer = transformers.Trainer(new_model(), arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=directory + "/checkpoint-2" if run else None)
        trainer = None
    print("Trainer", allows_tf32(), torch.backends.cudnn.benchmark, torch.cuda.max_memory_allocated())
    torch.set_float32_matmul_precision("high")
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = new_model()
        def training_step(self, batch, index):
            return self.net(**batch).loss
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())
    for run in range(2):
        trainer = lightning.Trainer(
            max_epochs=1 + run, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, benchmark=True,
            enable_progress_bar=False, enable_model_summary=False)
        loader = torch.utils.data.DataLoader(rows, batch_size=16)
        trainer.fit(Task(), loader, ckpt_path=directory + "/state.ckpt" if run else None, weights_only=False)
        trainer.save_checkpoint(directory + "/state.ckpt")
        trainer = None
    print("Lightning", allows_tf32(), torch.backends.cudnn.benchmark, torch.cuda.max_memory_allocated())
"""


def test_levers_of_the_gpu(oomph, tmp_path):
    """Those that do nothing on the CPU; in each framework a training that is then resumed."""
    for package in ("transformers", "accelerate", "lightning"):
        pytest.importorskip(package)

    def peaks(found, setting):
        assert found.status == 0, found.err
        lines = [line.split() for line in found.out.splitlines() if "max_memory" not in line]
        lines = [line for line in lines if line[:1] in (["Trainer"], ["Lightning"])]
        assert [line[1:3] for line in lines] == [[setting, setting]] * 2
        return [int(line[3]) for line in lines]

    before = peaks(oomph(ON_GPU, args=[str(tmp_path)], gpu="rtx-4090"), "True")
    levers = [
        ("allocator", {"conf": "expandable_segments:True"}),
        ("cudnn_benchmark", {"enabled": False}),
        ("tf32", {"enabled": False}),
        ("offload_activations", {"modules": [f"{BLOCK}.{i}" for i in range(4)]}),
        ("optimizer_on_cpu", {}),
    ]
    path = plan(tmp_path, *levers)
    found = oomph(ON_GPU, "--plan", path, args=[str(tmp_path)], gpu="rtx-4090")
    after = peaks(found, "False")
    assert [lever["name"] for lever in found.json["levers"] if not lever["applied"]] == []
    # The state is of 103.5 MB; it is on the host too where a training begins with a state that was read.
    assert all(least < 380e6 < 650e6 < most for least, most in zip(after, before, strict=True))
