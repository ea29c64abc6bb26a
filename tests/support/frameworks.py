"""One job under a plain loop, Hugging Face's Trainer and Lightning."""

import pytest

from tests.support.levers import run

JOB = """
    import logging, os, sys, warnings
    warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
    import transformers
    from oomph.levers import chunked_cross_entropy
    from oomph.levers._shared import host_copies
    chunked_cross_entropy.VOCABULARY, chunked_cross_entropy.MANY = 16, 64
    host_copies._is_offloadable = lambda tensor: tensor.layout is torch.strided
    host_copies.SMALLEST = 64
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

# What takes longer to import than the job takes to run.
PRELUDES = {
    "plain": "import transformers; transformers.GPT2LMHeadModel",
    "trainer": "import safetensors.torch, transformers; transformers.GPT2LMHeadModel, transformers.Trainer",
    "lightning": "import lightning, transformers; transformers.GPT2LMHeadModel",
}
FRAMEWORKS = {"plain": PLAIN, "trainer": TRAINER, "lightning": LIGHTNING}


def job(tmp_path, framework, *levers, **setting):
    for package in ("transformers", "accelerate") + ("lightning",) * (framework == "lightning"):
        pytest.importorskip(package)
    names = dict(dropout=0.0, accumulate=1, clip=0, bf16=False, adam=True, ignored=True)
    names |= setting | {"directory": str(tmp_path)}
    result = run(tmp_path, FRAMEWORKS[framework], *levers, prelude=PRELUDES[framework], **names)
    assert result.refusal is None, result.refusal
    return result
