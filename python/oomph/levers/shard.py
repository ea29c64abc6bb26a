"""Runs a single-GPU script on several GPUs: each takes a part of every batch, and of the model."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from oomph import _torch_features as torch_features
from oomph._import_hooks import on_import
from oomph.levers._shared import batch_shares, rank_zero
from oomph.levers._shared.base import Lever
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.half import DTYPES
from oomph.levers._shared.job import Backward, Clipped, Job, Proceed, names
from oomph.levers._shared.loss_terms import Inseparable, check_start, coupled, nodes

DTensor = torch_features.moved("torch.distributed.tensor", "DTensor")
BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm


class Shard(Lever):
    """Trains on several ranks, started by `torchrun`, what the script trains on one GPU.

    Needs: the script's own loop over a DataLoader, and one rank per GPU. Changes: each rank computes its
    part of each batch, so the global batch does not change. With `shards` 1 each holds the whole
    model and gradients are averaged (DistributedDataParallel); otherwise `shards` ranks each hold a shard
    of parameters, gradients and optimizer state (FSDP2's `fully_shard`), and the groups
    are replicas of each other. Results: the same to rounding, with `dtype` other
    numerics. Each rank's loss counts for its part of the batch's samples (of its targets, if some
    are ignored); after `backward` the loss tensor holds the loss of the whole batch. Batch
    normalization becomes `SyncBatchNorm`. Random layers draw other numbers on each rank.

    Batches without training (evaluation) are not split: every rank computes them whole.
    What the script itself counts in training batches (samples, accuracy) covers its rank's part.
    The first rank prints, logs and saves, with whole tensors as on one GPU.

    Refused by name: scripts that are already distributed, frameworks with their own means
    (Hugging Face's Trainer, Lightning, accelerate), loops without a DataLoader, losses that compare
    samples, LBFGS under sharding, gradients that do not come from `backward`, parameters outside the
    model or frozen when it was first called.
    """

    name = "shard"

    def __init__(
        self,
        gpus: int,
        shards: int = 1,
        modules: list[str] | None = None,
        reshard: bool = True,
        dtype: str | None = None,
        offload: bool = False,
        unused: bool = False,
    ) -> None:
        """`gpus` ranks (1 only replaces DataParallel); `shards` of them hold the model together. `modules` are the blocks that are
        gathered one at a time; `reshard` drops them again after their forward pass. `dtype` is what
        they are gathered and computed in; `offload` keeps all parts in host memory, where the
        optimizer steps. `unused`: some parameters get no gradient in some steps."""
        super().__init__()
        if gpus < 1 or shards < 1 or gpus % shards:
            raise self.refuse(f"{gpus} GPUs cannot be divided into groups of {shards}")
        if dtype is not None and dtype not in DTYPES:
            raise self.refuse(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.world, self.shards = gpus, shards
        self.modules, self.reshard = list(modules or []), reshard
        self.dtype = DTYPES[dtype] if dtype else None
        self.offload, self.unused = offload, unused
        self.rank = 0
        self.share: batch_shares.BatchShare | None = None
        """This rank's part of the current batch; None for all of it."""
        self.taken = 0
        """Batches that were split among ranks."""
        self.outputs: list[Any] = []
        self.checked = False
        self.factors: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The losses of the backward pass in progress, and their weights."""
        self.unscaled: weakref.ref[torch.Tensor] | None = None
        """What a GradScaler scaled last."""
        self.scaled: weakref.ref[torch.Tensor] | None = None
        """What it made of it."""
        self.is_used = self.is_trained_on = False
        """Whether a model was called on this rank's part of the batch, and a backward pass came."""
        self.idle = 0
        """Batches that were split, but not trained on."""
        self.wrapped: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.replicas: weakref.WeakKeyDictionary[torch.nn.Module, _Replica] = (
            weakref.WeakKeyDictionary()
        )
        self.averaged: dict[int, weakref.ref[torch.Tensor]] = {}
        """Parameters whose gradients DistributedDataParallel averages, by their ids."""
        # Keep no references to sharded parameters: PyTorch moves them by swapping, which references would prevent.
        self.became: dict[
            int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.nn.Module], str]
        ] = {}
        """For each parameter that was dealt out, by its id: itself, and where its replacement is."""
        self.mesh: Any = None
        self.micro_batch: Any = None

    # ---- start ----

    def install(self, job: Job) -> None:
        """Join the other ranks, and intervene wherever one process differs from several."""
        self.job = job
        self._replace_data_parallel()
        if self.world == 1:
            return
        self.micro_batch = next((one for one in job.levers if one.cuts_batches), None)
        self._start()
        batch_shares.install(self)
        job.on_move.append(self._move)
        job.on_model.append(self._model)
        job.on_enter.append(self._enter)
        job.on_optimizer.append(self._optimizer)
        job.on_leave.append(self._leave)
        job.on_backward.append(self._backward)
        job.after_backward.append(self._after_backward)
        job.around_clip.append(self._clip)
        job.around_step.append(self._step)
        self._refuse_others()
        self._refuse_gradients_by_hand()
        self._watch_scaling()
        _same_is_swapped()
        if self.offload:
            self._stay_on_the_cpu()

    def _start(self) -> None:
        import torch.distributed as dist

        ranks = int(os.environ.get("WORLD_SIZE", 1))
        if ranks != self.world or "RANK" not in os.environ:
            raise self.refuse(
                f"it was planned for {self.world} ranks, one per GPU; there "
                f"{'is' if ranks == 1 else 'are'} {ranks}",
                instead="oomph run --plan oomph-plan.toml -- "
                f"torchrun --nproc-per-node {self.world} SCRIPT",
            )
        cuda = torch.cuda.is_available()
        self.device_type = "cuda" if cuda else "cpu"
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        self.rank = dist.get_rank()
        first = [torch.initial_seed(), hash("a string")]
        dist.broadcast_object_list(first, device=torch.device("cpu"))
        rank_zero.install(self.rank, first[0])
        if first[1] != hash("a string"):
            self.add_note(
                "sets of strings have a different order on each rank: if the script depends on such an order, start "
                "it with PYTHONHASHSEED=0 in the environment"
            )

        def again(*args: Any, **kwargs: Any) -> None:
            raise self.refuse(
                "it is already distributed (init_process_group). Run it unchanged: "
                "oomph run --gpu NAME:N -- torchrun --nproc-per-node N SCRIPT"
            )

        for module in (dist, dist.distributed_c10d):
            module.init_process_group = again  # type: ignore[attr-defined]

    def _refuse_others(self) -> None:
        def refused(module: Any, kind: str, method: str, what: str, instead: str) -> None:
            def refuse(*args: Any, **kwargs: Any) -> None:
                why = f"{what} has its own support for several GPUs"
                raise self.refuse(why, instead=instead)

            setattr(getattr(module, kind), method, refuse)

        def on(name: str, *how: str) -> None:
            on_import(name, lambda module: refused(module, *how))

        count = self.world
        hugging = f"TrainingArguments(…, fsdp=['full_shard', 'auto_wrap'], per_device_train_batch_size=old // {count})"
        if self.shards == 1:
            hugging = f"TrainingArguments(…, per_device_train_batch_size=old // {count})"
        torchrun = f"torchrun --nproc-per-node {count} SCRIPT\n"
        on("transformers.trainer", "Trainer", "__init__", "Hugging Face's Trainer", f"{hugging}\n{torchrun}")  # fmt: skip
        strategy = "ddp" if self.shards == 1 else "fsdp"
        for package in ("lightning.pytorch", "pytorch_lightning"):
            on(f"{package}.trainer.trainer", "Trainer", "__init__", "Lightning", f"Trainer(…, devices={count}, strategy='{strategy}')  # batch_size=old // {count}\n")  # fmt: skip
        on("accelerate.accelerator", "Accelerator", "__init__", "accelerate", f"accelerate launch --num_processes {count} SCRIPT  # batch_size=old // {count}\n")  # fmt: skip

    def _refuse_gradients_by_hand(self) -> None:
        """Ranks synchronize in `backward`; `torch.autograd.grad` returns each rank's own gradients."""
        original = torch.autograd.grad

        @functools.wraps(original)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            asked = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            if self.share is not None and any(
                isinstance(t, torch.Tensor) and self._is_averaged(t) for t in asked
            ):
                raise self.refuse(
                    "it asks for gradients of parameters (torch.autograd.grad), which are not averaged "
                    "over the ranks. Call backward, and read them from .grad"
                )
            return original(outputs, inputs, *args, **kwargs)

        torch.autograd.grad = grad

    def _watch_scaling(self) -> None:
        """Scripts print the loss that they gave to a GradScaler."""
        from torch.amp import GradScaler

        original, lever = GradScaler.scale, self

        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and scaled is not outputs:
                lever.unscaled, lever.scaled = weakref.ref(outputs), weakref.ref(scaled)
            return scaled

        GradScaler.scale = scale  # type: ignore[method-assign]

    def _replace_data_parallel(self) -> None:
        """One process sees one GPU, so there is nothing left to do."""
        original = torch.nn.DataParallel.__init__

        @functools.wraps(original)
        def initialize(module: Any, inner: Any, *args: Any, **kwargs: Any) -> None:
            self.add_note("torch.nn.DataParallel is replaced by one process per GPU")
            self.applied += self.world == 1
            original(module, inner)

        torch.nn.DataParallel.__init__ = initialize  # type: ignore[method-assign]

    # ---- the model ----

    def _move(self, module: torch.nn.Module, device: torch.device) -> None:
        """A model that is sharded before it is moved is never whole on one GPU."""
        if self.shards == 1 or not self.modules:
            return
        named = names(module)
        if all(name in named for name in self.modules) and _has_contents(module):
            self._shard(module, named)

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if module not in self.wrapped:
            self._model(module, names(module))

    def _model(self, module: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        # Before there is an optimizer, scripts call parts of models to inspect their output.
        if not self.job.optimizers or (self.shards == 1 and not torch.is_grad_enabled()):
            return
        parts = [m for m in module.modules() if any(True for _ in m.parameters(False))]
        if all(part in self.wrapped for part in parts):
            self.wrapped.add(module)
            return
        for part in parts:
            own = part.parameters(False)
            if part in self.wrapped and (self.shards > 1 or any(map(self._is_averaged, own))):
                raise self.refuse(
                    f"{type(module).__name__} has parts that were called by themselves before or belong to "
                    f"another model ({type(part).__name__}), whose parameters are already sharded"
                )
        self._check_model(module)
        if self.shards == 1:
            if any(p.requires_grad for p in module.parameters()):
                self._replicate(module)
            self.wrapped.update(module.modules())
        else:
            self._shard(module, named)

    def _is_averaged(self, p: torch.Tensor) -> bool:
        if self.shards > 1:
            return isinstance(p, DTensor)
        reference = self.averaged.get(id(p))
        return reference is not None and reference() is p

    def _check_model(self, module: torch.nn.Module) -> None:
        for name, part in module.named_modules():
            if isinstance(part, BATCH_NORMS) and not isinstance(
                part, (torch.nn.SyncBatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
            ):
                if self.device_type != "cuda":
                    raise self.refuse(
                        f"batch normalization ({name}) computes its statistics over the whole batch, and "
                        "SyncBatchNorm, which does so over ranks, needs a GPU"
                    )
                # In place, so that existing references to the layer stay valid.
                _synchronize(part)
                self.add_note(
                    "batch normalization computes its statistics over all ranks (SyncBatchNorm)"
                )

    def _replicate(self, module: torch.nn.Module) -> None:
        """DistributedDataParallel around the model, which the script goes on to call by itself."""
        replica = _Replica(module, self.unused)
        self.replicas[module] = replica

        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            with self._gradients_moved(replica.ddp):
                args, kwargs = replica.before(module, args, kwargs)
            return replica.after(forward(*args, **kwargs))

        around_forward(module, around, self.order)
        self.averaged.update(
            (id(p), weakref.ref(p)) for p in module.parameters() if p.requires_grad
        )
        self.applied += 1

    @contextlib.contextmanager
    def _gradients_moved(self, ddp: Any) -> Any:
        """Gradients are averaged with the last micro-batch; meanwhile buckets may be made anew, with
        the gradients that are views of them, which is no change by the script."""
        batch = self.micro_batch.batch if self.micro_batch is not None else None
        ddp.require_backward_grad_sync = batch is None or batch.external or batch.last
        among = batch is not None and not batch.external and batch.index > 0
        if among and batch.backwards == 0:
            batch.check_gradients(self.micro_batch)
        yield
        if among and batch.backwards == 0:
            batch.remember_gradients(self.job.optimizers)

    def _shard(self, module: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard = (
            torch_features.moved("torch.distributed.fsdp", name)
            for name in ("CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard")
        )
        self._check_model(module)
        places = NamedModules(self.modules)
        blocks = places.take(named)
        before = dict(module.named_parameters(remove_duplicate=False))
        _check_alike(self, before)
        for name, block in list(blocks.items()):
            if _shares_parameters(block, before):
                del blocks[name]
                self.add_note(
                    f"{name} shares parameters with other modules, so it is not gathered separately"
                )
        options: dict[str, Any] = dict(
            mesh=self._mesh(),
            offload_policy=CPUOffloadPolicy() if self.offload else OffloadPolicy(),
            reshard_after_forward=self.reshard,
        )
        lowered = MixedPrecisionPolicy(
            param_dtype=self.dtype, reduce_dtype=torch.float32 if self.dtype else None
        )
        full = MixedPrecisionPolicy(
            param_dtype=self.dtype,
            reduce_dtype=lowered.reduce_dtype,
            output_dtype=torch.float32 if self.dtype else None,
        )
        for block in blocks.values():
            _keeping_its_name(block, lambda m: fully_shard(m, mp_policy=lowered, **options))
        # The outermost is gathered first and last: it stays between its forward and its backward.
        options["reshard_after_forward"] = None if self.reshard else False
        _keeping_its_name(module, lambda m: fully_shard(m, mp_policy=full, **options))
        self.wrapped.update(module.modules())
        for name, old in before.items():
            path, _, own = name.rpartition(".")
            owner = module.get_submodule(path)
            if owner._parameters[own] is not old:
                self.became[id(old)] = weakref.ref(old), weakref.ref(owner), own
        for optimizer in self.job.optimizers:
            self._refer(optimizer)
        self.applied += 1 + len(blocks)

    def _stay_on_the_cpu(self) -> None:
        """`model.to("cuda")` moves nothing of what is kept in host memory on purpose."""
        original, lever = torch.nn.Module._apply, self

        @functools.wraps(original)
        def apply(module: Any, fn: Any, recurse: bool = True) -> Any:
            if module not in lever.wrapped:
                return original(module, fn, recurse)
            for p in module.parameters():
                if fn(torch.empty(0, dtype=p.dtype)).dtype != p.dtype:
                    raise lever.refuse(
                        "it casts the model after it was moved to the GPU: cast it before, or in one call"
                    )
            return module

        torch.nn.Module._apply = apply  # type: ignore[method-assign]

    def _mesh(self) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        if self.mesh is None:
            if self.device_type == "cuda":
                torch.cuda.set_device(0)  # else the mesh takes LOCAL_RANK for it
            if self.shards == self.world:
                self.mesh = init_device_mesh(self.device_type, (self.world,))
            else:
                self.mesh = init_device_mesh(
                    self.device_type,
                    (self.world // self.shards, self.shards),
                    mesh_dim_names=("replicas", "shards"),
                )
        return self.mesh

    # ---- optimizers ----

    def _replacement(self, p: Any) -> Any:
        old, owner, name = self.became.get(id(p), (None, None, ""))
        if old is None or owner is None or old() is not p or (module := owner()) is None:
            return p
        return module._parameters[name]

    def _refer(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer steps the shards instead of the whole parameters."""
        for group in optimizer.param_groups:
            for index, p in enumerate(group["params"]):
                new = self._replacement(p)
                if new is not p:
                    group["params"][index] = new
                    if p in optimizer.state:
                        optimizer.state[new] = optimizer.state.pop(p)
        rank_zero.deal_state(optimizer)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS) and self.shards > 1:
            raise self.refuse("LBFGS treats all parameters as one vector, which no rank has")
        if self.became:
            self._refer(optimizer)

    def _step(self, optimizer: torch.optim.Optimizer, proceed: Proceed) -> Any:
        if not self.taken:
            raise self.refuse(
                "it trains on batches that do not come from its own DataLoader, so there is nothing to "
                "share out",
                manually=True,
            )
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self._is_averaged(p):
                    raise self.refuse(
                        f"the optimizer trains a parameter of shape {tuple(p.shape)} whose gradient is not "
                        "averaged: it belongs to no module that was called, or was "
                        "frozen (requires_grad) when its model was first called"
                    )
        return proceed()

    def _clip(self, parameters: Clipped, proceed: Proceed) -> Any:
        # The clipping's own list: replace parameters that were sharded since the script made its list.
        parameters[:] = [self._replacement(p) for p in parameters]
        norm = proceed()
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    # ---- batches ----

    def trains(self) -> bool:
        """Whether the batches that the script asks for now are ones to train on."""
        if not torch.is_grad_enabled():
            return False
        trained = {id(p) for o in self.job.optimizers for g in o.param_groups for p in g["params"]}
        if not trained:
            return False
        models = [m for m in self.job.models if any(id(p) in trained for p in m.parameters())]
        return not models or any(m.training for m in models)

    def take(self, share: batch_shares.BatchShare | None) -> None:
        """The script gets its part of the next batch."""
        self._count_idle()
        self.share = share
        self.outputs = []
        if share is not None:
            if not self.taken and self.device_type == "cuda":
                # Dropout draws other numbers for other samples.
                torch.cuda.manual_seed(torch.initial_seed() + self.rank)
            self.taken += 1

    def _count_idle(self) -> None:
        self.idle += self.is_used and not self.is_trained_on
        self.is_used = self.is_trained_on = False

    def check_batch(self, share: batch_shares.BatchShare) -> None:
        """Note unequal parts; refuse batches that would always leave ranks without work."""
        if share.whole < self.world and not self.taken:
            raise self.refuse(
                f"its batches have {share.whole} samples, fewer than the {self.world} ranks. Use at most "
                f"{share.whole} GPUs, or a larger batch"
            )
        if share.whole % self.world:
            self.add_note(
                f"batches of {share.whole} are not divisible by {self.world}: some ranks compute one more sample, "
                "and each rank counts for its share"
            )

    def _leave(self, module: torch.nn.Module, output: Any) -> None:
        if self.share is None:
            return
        self.is_used = True
        if torch.is_grad_enabled():
            self.outputs += nodes(output)

    def _backward(self, call: Backward) -> None:
        share, outputs, self.outputs = self.share, self.outputs, []
        self.factors = []
        for replica in self.replicas.values():
            replica.expect(call.tensors)
        if share is None:
            return
        self.is_trained_on = True
        for index, tensor in enumerate(call.tensors):
            check_start(self, tensor, call.gradients[index])
            try:
                if not self.checked and (why := coupled(tensor, max(1, share.size))):
                    raise Inseparable(why)
                factor = batch_shares.weigh(self, tensor, share, outputs)
            except Inseparable as error:
                raise self.refuse(
                    f"the loss of a batch does not follow from its parts: {error}", manually=True
                ) from None
            if tensor.numel() == 1 and tensor.is_floating_point():
                self.factors.append((tensor, factor))
                if (
                    self.scaled is not None
                    and self.scaled() is tensor
                    and self.unscaled is not None
                ):
                    unscaled = self.unscaled()
                    if unscaled is not None:
                        self.factors.append((unscaled, factor))
        self.checked = True

    @torch.no_grad()
    def _after_backward(self) -> None:
        """From here on the script reads the loss of the whole batch."""
        import torch.distributed as dist

        for replica in self.replicas.values():
            replica.is_spent = True
        for loss, factor in self.factors:
            part = loss.detach().to(torch.float32) * factor.reshape(loss.shape) / self.world
            part = torch.where(factor.reshape(loss.shape) == 0, torch.zeros_like(part), part)
            dist.all_reduce(part)
            loss.data.copy_(part)
        self.factors = []

    # ---- words ----

    def finish(self) -> None:
        """Report what was not changed."""
        if self.world == 1:
            return
        if not self.applied:
            self.add_note("no model with parameters was called")
        elif not self.taken:
            self.add_note("no training batch came from a DataLoader")
        else:
            self.add_note(
                "what the script itself counts in training batches (samples, accuracy) covers its rank's part"
            )
        self._count_idle()
        if self.idle:
            self.add_note(
                f"{self.idle} batches were split among ranks, but not trained on: what the script computed from "
                "them covers a part. Batches stay whole under torch.no_grad(), or if models "
                "are in evaluation mode"
            )


class _Replica:
    """DistributedDataParallel for a model, without extending the model's lifetime."""

    def __init__(self, module: torch.nn.Module, unused: bool) -> None:
        """A collective."""
        from torch.nn.parallel import DistributedDataParallel

        self.ddp: Any = DistributedDataParallel(
            module, gradient_as_bucket_view=True, find_unused_parameters=unused
        )
        del self.ddp.module
        self.is_spent = True
        """Whether a backward pass came since the last forward pass."""

    # As torch.distributed._composable.replicate does.

    def before(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self.ddp.module = module  # whose buffers become the first rank's
        try:
            return self.ddp._pre_forward(*args, **kwargs)
        finally:
            del self.ddp.module

    def after(self, output: Any) -> Any:
        self.is_spent = False
        return self.ddp._post_forward(output)

    def expect(self, losses: list[torch.Tensor]) -> None:
        """A backward pass comes: one of several forward passes of which others had theirs already,
        or of parts of the model that were called by themselves."""
        if self.is_spent and self.ddp.require_backward_grad_sync:
            # It notes in what order the first gradients come, each once.
            self.ddp.reducer._rebuild_buckets()
            made = [loss for loss in losses if loss.grad_fn is not None]
            self.ddp.reducer.prepare_for_backward(made if self.ddp.find_unused_parameters else [])


def _has_contents(module: torch.nn.Module) -> bool:
    """Whether there is anything to shard: parameters with contents."""
    return any(p.device.type != "meta" for p in module.parameters())


def _keeping_its_name(module: torch.nn.Module, wrap: Any) -> None:
    """`fully_shard` derives a class `FSDPName`; reports and plans know the module by its own."""
    name = type(module).__name__
    wrap(module)
    type(module).__name__ = type(module).__qualname__ = name


def _shares_parameters(block: torch.nn.Module, everything: dict[str, Any]) -> bool:
    """Whether a parameter of the block is one of a module outside of it, too."""
    inside = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
    all_of_them = Counter(id(p) for p in everything.values())
    return any(all_of_them[key] > count for key, count in inside.items())


def _check_alike(lever: Shard, parameters: dict[str, Any]) -> None:
    """Compare a few elements to detect ranks with different weights."""
    import torch.distributed as dist

    sample = [
        p.detach().reshape(-1)[[0, p.numel() // 2, -1]].to("cpu", torch.float32)
        for p in parameters.values()
        if p.numel() and p.device.type == "cpu"
    ]
    if not sample:
        return
    own = torch.cat(sample).nan_to_num()
    least, most = own.clone(), own.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if not torch.equal(least, most):
        raise lever.refuse(
            "its ranks built models with different weights: they come from a generator other than torch's, Python's and "
            "NumPy's. Seed it, or load the weights from a file"
        )


def _synchronize(layer: Any) -> None:
    """Make a batch normalization one over all ranks."""
    like = torch.nn.SyncBatchNorm(
        layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
    )
    layer.__class__ = type(like)
    layer.process_group = None


def _same_is_swapped() -> None:
    """`module.to(device)` of what is there already swaps each part with itself, which PyTorch refuses
    where somebody holds a weak reference."""
    original = torch.utils.swap_tensors

    @functools.wraps(original)
    def swap(a: torch.Tensor, b: torch.Tensor) -> None:
        if a is not b:
            original(a, b)

    torch.utils.swap_tensors = swap


LEVER = Shard
