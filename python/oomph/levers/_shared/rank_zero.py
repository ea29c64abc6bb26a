"""Runs a single-process script on several ranks: only the first rank prints, logs and saves.

Saving gathers sharded tensors, so files are like those of a run on one GPU;
loading such a file shards them again.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from oomph import _torch_features as torch_features
from oomph._import_hooks import on_import

DTensor = torch_features.moved("torch.distributed.tensor", "DTensor")
distribute_tensor = torch_features.moved("torch.distributed.tensor", "distribute_tensor")


def install(rank: int, seed: int) -> None:
    """All ranks use the first one's random numbers; the others are silent."""
    torch.manual_seed(seed)
    random.seed(seed)
    on_import("numpy", lambda numpy: numpy.random.seed(seed % (1 << 32)))
    _saving(rank)
    _loading()
    if rank == 0:
        return
    # Errors still go to stderr. Only one rank shows progress bars.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (it stays open)
    logging.disable(logging.INFO)
    os.environ.update(TQDM_DISABLE="1", WANDB_MODE="disabled")
    on_import("tqdm.std", _without_bars)
    on_import("torch.utils.tensorboard.writer", _without_events)


def draw_alike() -> None:
    """Synchronize the CPU's random state with the first rank. A collective, on the CPU."""
    numpy = sys.modules.get("numpy")
    states = [torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()]
    dist.broadcast_object_list(states, device=torch.device("cpu"))
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if numpy and states[2] is not None:
        numpy.random.set_state(states[2])


def _without_bars(module: Any) -> None:
    original = module.tqdm.__init__

    @functools.wraps(original)
    def initialize(bar: Any, *args: Any, **kwargs: Any) -> None:
        original(bar, *args, **{**kwargs, "disable": True})

    module.tqdm.__init__ = initialize


def _without_events(module: Any) -> None:
    """A TensorBoard writer whose methods write nothing."""
    kind = module.SummaryWriter
    kind.__init__ = lambda writer, *args, **kwargs: None
    for name in list(vars(kind)):
        if name.startswith("add_") or name in ("flush", "close"):
            setattr(kind, name, lambda writer, *args, **kwargs: None)


def whole(value: Any) -> Any:
    """`value` with each sharded tensor gathered. Every rank must call it."""
    if isinstance(value, DTensor):
        gathered = value.detach().full_tensor()
        return gathered.cpu() if dist.get_rank() == 0 else None
    if isinstance(value, Mapping):
        # In a fixed order: all ranks must call the same collectives.
        items = {key: whole(item) for key, item in value.items()}
        if not isinstance(value, OrderedDict):
            return items
        ordered: Any = type(value)(items)
        vars(ordered).update(vars(value))  # versions of modules, in a state
        return ordered
    if type(value) in (list, tuple):
        return type(value)(whole(item) for item in value)
    return value


def _has_parts(value: Any) -> bool:
    if isinstance(value, DTensor):
        return True
    if isinstance(value, Mapping):
        return any(_has_parts(item) for item in value.values())
    return type(value) in (list, tuple) and any(_has_parts(item) for item in value)


def _saving(rank: int) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)) and not hasattr(f, "name"):
            return original(obj, f, *args, **kwargs)  # in memory, as pickling a storage does
        if _has_parts(obj):
            obj = whole(obj)
        if hasattr(f, "name"):
            dist.barrier()  # every rank has opened the file, which empties it
        if rank == 0:
            original(obj, f, *args, **kwargs)
        dist.barrier()
        return None

    torch.save = save
    on_import("transformers.modeling_utils", functools.partial(_pretrained, rank))


def _pretrained(rank: int, module: Any) -> None:
    """Hugging Face's models write files by themselves."""
    original = module.PreTrainedModel.save_pretrained

    @functools.wraps(original)
    def save_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
        state = whole(kwargs.pop("state_dict", None) or model.state_dict())
        if rank == 0:
            original(model, *args, state_dict=state, **kwargs)
        dist.barrier()

    module.PreTrainedModel.save_pretrained = save_pretrained


def deal(value: Any, like: Any) -> Any:
    """This rank's shard of a whole tensor `value`, sharded as `like`."""
    parts = isinstance(like, DTensor) and not isinstance(value, DTensor)
    if not parts or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    moved = value.detach().to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def _loading() -> None:
    load_model = torch.nn.Module.load_state_dict

    @functools.wraps(load_model)
    def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = module.state_dict()
        if any(isinstance(value, DTensor) for value in own.values()):
            state_dict = {key: deal(value, own.get(key)) for key, value in state_dict.items()}
        return load_model(module, state_dict, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
    load_optimizer = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load_optimizer)
    def load_optimizer_state(optimizer: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        load_optimizer(optimizer, state_dict, *args, **kwargs)
        deal_state(optimizer)

    torch.optim.Optimizer.load_state_dict = load_optimizer_state  # type: ignore[method-assign]


def deal_state(optimizer: torch.optim.Optimizer) -> None:
    """Give each rank its shard of the whole state from a file."""
    for p, state in optimizer.state.items():
        if isinstance(p, DTensor):
            for name, value in list(state.items()):
                state[name] = deal(value, p)
