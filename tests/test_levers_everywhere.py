"""Each training lever under a plain loop, Hugging Face's Trainer and Lightning: training as without it.

One job in three frameworks: a GPT-2 of three blocks, evaluation and saving while it trains, and then a second
run from a saved checkpoint. What must be the same is all that such a job leaves: weights, losses, evaluations,
learning rates, and the files' keys and values.
"""

import pytest
import torch
from lever_runs import distance, run
from test_levers_run import plan

JOB = """
    import logging, os, sys, warnings
    warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
    import transformers
    from oomph.levers import chunked_cross_entropy, offload_activations
    chunked_cross_entropy.VOCABULARY, chunked_cross_entropy.MANY = 16, 64
    offload_activations._is_offloadable = lambda tensor: tensor.layout is torch.strided
    offload_activations.SMALLEST = 64
    def new_model():
        torch.manual_seed(1)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=80, n_embd=16, n_layer=3, n_head=2, n_positions=16,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=0.0,
        ))
    def new_optimizer(model):
        if adam:
            return torch.optim.AdamW(model.parameters(), lr=1e-2)
        # Its updates are as large as the gradients, so that rounding is not more than it was.
        return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    torch.manual_seed(2)
    rows = [dict(input_ids=row, labels=row.clone()) for row in torch.randint(80, (24, 10))]
    for i, row in enumerate(rows):
        row["labels"][: i % 4 if ignored else 0] = -100
    probe = torch.stack([row["input_ids"] for row in rows[:4]])
    sizes, evaluations = set(), []
    def seen(model, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        if model.training:
            sizes.add(len(ids))
    def look(model):
        "An evaluation as people write it: without `no_grad`."
        was = model.training
        model.eval()
        evaluations.append(model(input_ids=probe).logits.double().mean().item())
        model.train(was)
    def flat(value, key=""):
        "The tensors and numbers of a nesting, by their places in it."
        if isinstance(value, (dict, list, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {k: v for name, item in items for k, v in flat(item, f"{key}/{name}").items()}
        if isinstance(value, torch.Tensor):
            return {key: value.clone() if type(value) is torch.Tensor else type(value).__name__}
        return {key: value}
    def clones(state):
        return {name: value.clone() for name, value in state.items()}
    def read(path):
        return flat(torch.load(path, weights_only=False, map_location="cpu"))
"""

PLAIN = (
    JOB
    + """
    from torch.utils.data import DataLoader
    def collate(rows):
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    def train(model, start):
        model.register_forward_pre_hook(seen, with_kwargs=True)
        optimizer = new_optimizer(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        losses = []
        if start:
            state = torch.load(f"{directory}/plain-{start}.pt", weights_only=False)
            model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
        for epoch in range(start, 2):
            torch.manual_seed(5 + epoch)
            model.train()
            for batch in DataLoader(rows, batch_size=4, collate_fn=collate):
                optimizer.zero_grad(set_to_none=False)
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = model(**batch).loss
                loss.backward()
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
            schedule.step()
            look(model)
            model.train()
            torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(),
                            schedule=schedule.state_dict()), f"{directory}/plain-{epoch + 1}.pt")
        return clones(model.state_dict())
    out = [train(new_model(), 0)]
    out.append(read(f"{directory}/plain-1.pt"))
    out.append(train(new_model(), 1))
    out += [evaluations, sizes]
"""
)

TRAINER = (
    JOB
    + """
    from safetensors.torch import load_file
    class Look(transformers.TrainerCallback):
        def on_epoch_end(self, arguments, state, control, model=None, **kwargs):
            look(model)
    def train(model, start):
        model.register_forward_pre_hook(seen, with_kwargs=True)
        arguments = transformers.TrainingArguments(
            output_dir=directory, num_train_epochs=2, per_device_train_batch_size=4 // accumulate,
            gradient_accumulation_steps=accumulate, max_grad_norm=clip, bf16=bf16, use_cpu=True, report_to=[],
            logging_steps=1, disable_tqdm=True, seed=5,
            eval_strategy="epoch", per_device_eval_batch_size=6, save_strategy="epoch",
        )
        optimizer = new_optimizer(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.9)
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows, eval_dataset=rows[:6], callbacks=[Look()],
            optimizers=(optimizer, schedule))
        trainer.train(resume_from_checkpoint=f"{directory}/checkpoint-{start}" if start else None)
        log = [{k: v for k, v in entry.items() if not k.endswith(("_runtime", "_second", "_flos"))}
               for entry in trainer.state.log_history]
        return clones(model.state_dict()), flat(log)
    out = [train(new_model(), 0)]
    out.append(load_file(f"{directory}/checkpoint-6/model.safetensors"))
    out.append(read(f"{directory}/checkpoint-6/optimizer.pt"))
    out.append(train(new_model(), 6))
    out += [evaluations, sizes]
"""
)

LIGHTNING = (
    JOB
    + """
    import lightning
    from torch.utils.data import DataLoader
    def collate(rows):
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = new_model()
            self.net.register_forward_pre_hook(seen, with_kwargs=True)
        def training_step(self, batch, index):
            loss = self.net(**batch).loss
            self.log("loss", loss)
            return loss
        def validation_step(self, batch, index):
            self.log("checked", self.net(**batch).loss)
        def on_train_epoch_end(self):
            look(self.net)
        def optimizer_zero_grad(self, epoch, batch, optimizer):
            optimizer.zero_grad(set_to_none=False)
        def configure_optimizers(self):
            optimizer = new_optimizer(self)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]
    def train(start):
        task = Task()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            dirpath=directory, filename="{epoch}", save_top_k=-1, enable_version_counter=False)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, callbacks=[saving], enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=accumulate, gradient_clip_val=clip or None,
            precision="bf16-mixed" if bf16 else "32-true", default_root_dir=directory, benchmark=True,
        )
        torch.manual_seed(5)
        trainer.fit(task, DataLoader(rows, batch_size=4 // accumulate, collate_fn=collate),
                    DataLoader(rows[:6], batch_size=6, collate_fn=collate),
                    ckpt_path=f"{directory}/epoch=0.ckpt" if start else None, weights_only=False)
        return clones(task.state_dict()), flat(dict(trainer.callback_metrics)), trainer.global_step
    out = [train(0)]
    saved = read(f"{directory}/epoch=0.ckpt")
    out.append({k: v for k, v in saved.items() if k.startswith(("/state_dict", "/optimizer_states", "/lr_schedulers"))})
    out.append(train(1))
    out += [evaluations, sizes]
"""
)

FRAMEWORKS = {"plain": PLAIN, "trainer": TRAINER, "lightning": LIGHTNING}


def job(tmp_path, framework, *levers, **setting):
    for package in ("transformers", "accelerate") + ("lightning",) * (framework == "lightning"):
        pytest.importorskip(package)
    names = dict(dropout=0.0, accumulate=1, clip=0, bf16=False, adam=True, ignored=True)
    names |= setting | {"directory": str(tmp_path)}
    result = run(tmp_path, FRAMEWORKS[framework], *levers, **names)
    assert result.refusal is None, result.refusal
    return result


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


def unlike(a, b, tolerance=0.0, place=""):
    """Places in two nestings that differ by more than `tolerance` (relative L2; 0: bitwise)."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{place}: {a.keys() ^ b.keys()}"]
        return [p for k in a for p in unlike(a[k], b[k], tolerance, f"{place}/{k}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [p for i, (x, y) in pairs for p in unlike(x, y, tolerance, f"{place}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype == b.dtype and a.shape == b.shape:
            off = 0.0 if torch.equal(a, b) else distance(a, b)
            return [] if off <= tolerance else [f"{place}: {off:.1e}"]
    elif isinstance(a, float) and isinstance(b, float):
        return [] if abs(a - b) <= tolerance * abs(b) else [f"{place}: {a} {b}"]
    elif a == b:
        return []
    return [f"{place}: {a} {b}"]


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
        assert (
            framework != "trainer"
            or "norm of the gradients" in other.levers["step_in_backward"]["note"]
        )
        different = [place for place in different if "grad_norm" not in place]
    assert different == []


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
