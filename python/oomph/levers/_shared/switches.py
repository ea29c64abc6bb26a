"""What frameworks have of their own for a lever: it is done by their switch where that comes to the same."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import os
from collections.abc import Iterator
from typing import Any

from oomph._import_hooks import on_import

running: list[Any] = []
"""The trainers of Hugging Face and Lightning that train, the innermost last."""
said: set[str] = set()
"""The classes that the script has given a precision."""
LIGHTNINGS = "bf16-mixed"
PRECISIONS = {"ACCELERATE_MIXED_PRECISION": "bf16", "PL_TRAINER_PRECISION": LIGHTNINGS}
"""What accelerate (and so `TrainingArguments`) and Lightning read where the script says nothing."""
COUNTED = ("ForCausalLMLoss", "ForMaskedLMLoss")
"""Losses of transformers that are a sum over the targets, divided by how many the whole batch has."""
STEPS = ("compute_loss", "get_batch_samples", "get_train_dataloader", "training_step")
"""Methods of Hugging Face's `Trainer` that decide what a step computes."""


@functools.cache
def watch() -> None:
    """Keep `running`."""
    on_import("transformers.trainer", functools.partial(_watch, "train"))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        on_import(f"{package}.trainer.trainer", functools.partial(_watch, "fit"))


def _watch(method: str, module: Any) -> None:
    original = getattr(module.Trainer, method)

    @functools.wraps(original)
    def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        running.append(trainer)
        try:
            return original(trainer, *args, **kwargs)
        finally:
            running.pop()

    setattr(module.Trainer, method, run)


def trains_with_arguments() -> bool:
    """Whether it is Hugging Face's `Trainer` that trains."""
    return bool(running) and hasattr(running[-1], "args")


@functools.cache
def _hear() -> None:
    """Keep `said`."""
    on_import("accelerate.accelerator", functools.partial(_note, "Accelerator", "mixed_precision"))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        on_import(f"{package}.trainer.trainer", functools.partial(_note, "Trainer", "precision"))


def _note(kind: str, argument: str, module: Any) -> None:
    original = getattr(module, kind).__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(made: Any, *args: Any, **kwargs: Any) -> None:
        if signature.bind_partial(made, *args, **kwargs).arguments.get(argument) is not None:
            said.add(kind)
        original(made, *args, **kwargs)

    getattr(module, kind).__init__ = initialize


def compute_in_bf16() -> bool:
    """Makes bf16 the precision of frameworks whose user sets none; whether it is for any of them."""
    watch()
    _hear()
    chosen = {name: os.environ.get(name, "no") for name in PRECISIONS}
    free = {name: value for name, value in PRECISIONS.items() if chosen[name] in ("", "no")}
    os.environ.update(free)
    return bool(free)


def autocasts(module: Any) -> str | None:
    """The switch by which a framework runs `module` in bf16, if one does and the script has not said so."""
    if running and getattr(running[-1], "precision", None) == LIGHTNINGS:
        return None if "Trainer" in said else f'Trainer: precision="{LIGHTNINGS}"'
    if not hasattr(module, "_original_forward"):  # accelerate's
        return None
    if trains_with_arguments():
        return None if running[-1].args.bf16 else "TrainingArguments: bf16=True"
    return None if "Accelerator" in said else 'Accelerator: mixed_precision="bf16"'


def checkpointed(job: Any, root: Any, named: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Has Hugging Face's Trainer checkpoint the layers of its model, if all of them are `wanted`; their names."""
    if not trains_with_arguments() or not _go_along(job):
        return []
    from transformers.modeling_utils import PreTrainedModel

    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return []
    layers = [name for name, m in named.items() if isinstance(m, GradientCheckpointingLayer)]
    models = [module for module in root.modules() if isinstance(module, PreTrainedModel)]
    if not layers or not set(layers) <= set(wanted) or not root.training:
        return []
    if not models or not models[0].supports_gradient_checkpointing:
        return []
    inside = set(map(id, models[0].modules()))
    if any(id(named[name]) not in inside or named[name].gradient_checkpointing for name in layers):
        return []
    models[0].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return layers


def arguments(trainer: Any, parts: int, equal: bool) -> tuple[int, int, str] | None:
    """The size of a batch and how many are accumulated so that each of the trainer's batches is in `parts`, and the words for
    it; None if its batches do not divide. `equal`: all batches must be of this size."""
    size, steps = trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps
    if size % parts or trainer.args.dataloader_drop_last or trainer.args.auto_find_batch_size:
        return None
    if not _has(trainer, "get_train_dataloader") or not hasattr(trainer.train_dataset, "__len__"):
        return None
    if equal and len(trainer.train_dataset) % size:
        return None
    words = (
        f"TrainingArguments: per_device_train_batch_size {size} -> {size // parts} "
        f"with gradient_accumulation_steps {steps} -> {steps * parts}"
    )
    return size // parts, steps * parts, words


def batches(trainer: Any, parts: int) -> str | None:
    """The words for smaller batches of which Lightning's `Trainer` accumulates more; None if they do not divide."""
    loader, steps = trainer.train_dataloader, trainer.accumulate_grad_batches
    size: Any = getattr(loader, "batch_size", None)
    try:
        even = size is not None and size % parts == 0 == len(loader.sampler) % size
    except (TypeError, AttributeError, NotImplementedError):
        even = False
    more = f"accumulate_grad_batches {steps} -> {steps * parts}"
    return f"Trainer: {more} with batch_size {size} -> {size // parts}" if even else None


def _has(trainer: Any, name: str) -> bool:
    """Whether a method of a trainer is that of Hugging Face's `Trainer`."""
    kinds = [kind for kind in type(trainer).__mro__ if name in vars(kind)]
    return bool(kinds) and kinds[0].__module__ == "transformers.trainer"


@contextlib.contextmanager
def accumulating(lever: Any, trainer: Any) -> Iterator[None]:
    """While `trainer` trains, it accumulates smaller batches, where that is sure to come to the same."""
    found = arguments(trainer, lever.parts, False)
    if found is None or not _go_along(lever.job) or not _counts_targets(trainer):
        yield
        return
    before, size = trainer.args, trainer._train_batch_size
    # The script's own arguments stay as they are.
    trainer.args = copy.copy(before)
    trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps, words = (
        found
    )
    trainer._train_batch_size = trainer.args.train_batch_size
    lever.switch, lever.switched = words, itertools.cycle(range(lever.parts))
    try:
        yield
    finally:
        trainer.args, trainer._train_batch_size, lever.switched = before, size, None


ALONE = frozenset(
    [
        *("allocator", "attention", "checkpoint", "chunked_cross_entropy", "cudnn_benchmark"),
        *("fused_modules", "inplace_activations", "micro_batch", "mixed_precision", "no_grad_eval"),
        *("offload_activations", "optimizer_8bit", "optimizer_on_cpu", "optimizer_step"),
        *("recompute", "save_on_cpu", "set_to_none", "single_threaded_backward", "tf32"),
    ]
)
"""Levers that a framework's own checkpoints and accumulation are nothing new to."""


def _go_along(job: Any) -> bool:
    return all(lever.name in ALONE for lever in job.levers)


def _counts_targets(trainer: Any) -> bool:
    """Whether the loss of each batch is divided by the number of targets of all that are accumulated, and nothing else."""
    from transformers.modeling_utils import PreTrainedModel

    if not all(_has(trainer, name) for name in STEPS):
        return False
    if not getattr(trainer, "model_accepts_loss_kwargs", False) or trainer.args.n_gpu > 1:
        return False
    if trainer.compute_loss_func is not None or trainer.label_smoother is not None:
        return False
    if trainer.args.deepspeed:
        return False
    models = (m for m in trainer.model.modules() if isinstance(m, PreTrainedModel))
    model = next(models, None)
    if model is None or getattr(model.config, "output_router_logits", False):
        return False
    forward = inspect.unwrap(type(model).forward)
    calls = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "loss_function" in calls and model.loss_function.__name__ in COUNTED
