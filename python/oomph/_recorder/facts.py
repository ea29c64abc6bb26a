"""Facts about a script for the planner: data loaders, precision, modules, optimizers."""

from __future__ import annotations

import functools
import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

from oomph._import_hooks import on_import
from oomph._recorder.addresses import cuda_tensors
from oomph._recorder.outermost_models import is_training
from oomph._recorder.progress import now
from oomph._recorder.resize import sequence_length, sizes_of_call
from oomph._user_functions import in_transform

if TYPE_CHECKING:
    from oomph._virtual_gpu.values import ValueLayer

_COUPLED = (torch.nn.modules.batchnorm._BatchNorm,)
"""Modules whose result for one sample depends on other samples of its batch."""

WIDE = torch.float32
NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16"}

MOST_BATCHES = 1000
"""The number of batches to time."""

MOST_OFFLOADS = 1000
"""Contexts that offload what autograd saves are noted up to this number."""

LOOKED = 8
"""The number of calls of each kind in which to look for a batch of two samples or more."""

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


def _is_lightnings(closure: Any) -> bool:
    """Whether Lightning made it: the batch is split before it is called (`levers/frameworks.py`)."""
    module = getattr(getattr(closure, "func", closure), "__module__", None) or ""
    return module.startswith(("lightning.pytorch.", "pytorch_lightning."))


class Facts:
    """Gathered while the script runs; `as_dict` gives the record's `facts`."""

    def __init__(self, layer: ValueLayer) -> None:
        """Creates an empty set of facts. `layer`: where the script's operators come."""
        self._layer = layer
        self.compiled = False
        self.compilations = 0
        self._loaders: dict[tuple[int, bool], int] = {}
        self._length = 0
        self._loading_ns: dict[bool, list[int]] = {False: [], True: []}
        """What batches took to prepare, with the value layer and without it."""
        self._on_cpu: weakref.WeakSet[Any] = weakref.WeakSet()
        """Iterators of data loaders that prepare their batches on the CPU alone."""
        self._autocast = ""
        self._scaled = False
        self._clipped = False
        self._graph_in_evaluation = False
        self._autocast_elsewhere = False
        self._autocasts = False
        """Whether autocast was on for the GPU at all."""
        self._narrow = False
        """Whether a model computed in 16 bits."""
        self._inside = False
        self.module_calls: Callable[[], int] = int
        """How many calls of modules have begun."""
        self._calls = 0
        """The same when the outermost one did that is running."""
        self.backwards = 0
        self.graph = 0
        """Passes with a graph before the first backward pass."""
        self._cache = False
        self._cast_on_gpu = ""
        self._loaded_on_gpu = 0
        self._batches: Counter[int] = Counter()
        self._batches_of_steps = 0
        """Without those that a step was not made of, which came after the last one."""
        """How many each dataset gave, by its `id`."""
        self._input: dict[str, int] = {}
        self._rank = (False, False, False)
        """Of the call that the sizes of inputs are from: on the GPU, with a graph, of several samples."""
        self._looked: Counter[tuple[bool, bool]] = Counter()
        self._given: Any = None
        """What a model was given last, weakly, if no backward pass has followed."""
        self._went_back: Any = None
        """The same of the last backward pass."""
        self._accumulated = self._stepped = 0
        """Backward passes of batches that differ, since the last step; steps of optimizers."""
        self._accumulations: Counter[int] = Counter()
        """How many steps used so many of these, as far as calls of models are seen."""
        self._closure = False
        self._mapped = 0
        self._kept_gradients = False
        self._modules: list[dict[str, Any]] = []
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._offloads: list[list[int]] = []

    def watch(self) -> None:
        """Observe PyTorch's functions; the script does not notice."""
        loader = torch.utils.data.DataLoader
        self._around(loader, "__iter__", self._iterated)
        self._watch_batches()
        self._around(torch.nn.utils, "clip_grad_norm_", self._clips)
        self._around(torch.nn.utils, "clip_grad_value_", self._clips)
        self._around(torch.amp.GradScaler, "scale", self._scales)
        self._around(torch.autocast, "__enter__", self._begins_autocast)
        self._around(torch.Tensor, "backward", self._goes_back)
        hooks = torch.autograd.graph.saved_tensors_hooks
        self._around(hooks, "__enter__", self._begins_offload)
        self._around(hooks, "__exit__", self._ends_offload)
        self._around(torch.optim.Optimizer, "zero_grad", self._clears)
        optim.register_optimizer_step_pre_hook(self._steps)
        on_import("transformers.cache_utils", self._watch_cache)
        self._watch_loading()
        on_import("torch._functorch.apis", self._watch_vmap)

    def _begins_offload(self, args: Any, kwargs: Any) -> None:
        if _offloads(args[0]) and len(self._offloads) < MOST_OFFLOADS:
            self._offloads.append([now(), 0])

    def _ends_offload(self, args: Any, kwargs: Any) -> None:
        if not _offloads(args[0]):
            return
        # Contexts are rarely nested; then the inner one's end stands for the outer one's, too.
        for span in reversed(self._offloads):
            if not span[1]:
                span[1] = now()
                return

    def _watch_cache(self, module: Any) -> None:
        self._around(module.DynamicLayer, "update", self._caches)

    def _caches(self, args: Any, kwargs: Any) -> None:
        self._cache = True

    def _watch_vmap(self, module: Any) -> None:
        original = getattr(module, "vmap_impl", None)
        if original is None:
            return

        @functools.wraps(original)
        def noted(func: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not in_transform():
                given = args[3:]  # after out_dims, randomness, chunk_size
                size, *_ = module_of_vmap._process_batched_inputs(in_dims, given, func)
                self._mapped = max(self._mapped, size)
            return original(func, in_dims, *args, **kwargs)

        import torch._functorch.vmap as module_of_vmap

        module.vmap_impl = noted

    def _watch_loading(self) -> None:
        """Weights on the GPU that the model does not compute with."""
        for name, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16)):
            self._around(
                torch.nn.Module,
                name,
                lambda args, kwargs, dtype=dtype: self._casts(args[0], dtype),
            )
        self._around(
            torch.nn.Module,
            "to",
            lambda args, kwargs: self._casts(
                args[0], torch._C._nn._parse_to(*args[1:], **kwargs)[1]
            ),
        )
        self._around(torch.nn.Module, "load_state_dict", self._loads)
        on_import(
            "transformers.modeling_utils",
            lambda module: self._around_bound(
                module.PreTrainedModel, "from_pretrained", self._places
            ),
        )

    def _casts(self, module: torch.nn.Module, dtype: torch.dtype | None) -> None:
        if dtype in NARROW and any(p.is_cuda and p.dtype == WIDE for p in module.parameters()):
            self._cast_on_gpu = NARROW[dtype]

    def _loads(self, args: Any, kwargs: Any) -> None:
        state = args[1] if len(args) > 1 else kwargs.get("state_dict", {})
        on_gpu = [t for t in state.values() if isinstance(t, torch.Tensor) and t.is_cuda]
        own = {t.data_ptr() for t in (*args[0].parameters(), *args[0].buffers())}
        copies = sum(t.nbytes for t in on_gpu if t.data_ptr() not in own)
        self._loaded_on_gpu = max(self._loaded_on_gpu, copies)

    def _places(self, args: Any, kwargs: Any) -> None:
        if "cuda" in str(kwargs.get("device_map", "")):
            self._loaded_on_gpu = max(self._loaded_on_gpu, 1)

    def _around_bound(self, owner: Any, name: str, note: Any) -> None:
        original = vars(owner)[name].__func__

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            note(args, kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, classmethod(noted))

    def _around(self, owner: Any, name: str, note: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            note(args, kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, noted)

    def _watch_batches(self) -> None:
        original = dataloader._BaseDataLoaderIter.__next__

        def noted(iterator: Any) -> Any:
            alone = iterator in self._on_cpu and self._layer.may_stand_aside()
            begin = time.thread_time_ns()
            if alone:
                with self._layer.standing_aside():
                    batch = original(iterator)
            else:
                batch = self._first_batch(original, iterator)
            took = time.thread_time_ns() - begin
            if torch.is_grad_enabled():
                self._batches[id(iterator._dataset)] += 1
                if len(self._loading_ns[alone]) < MOST_BATCHES:
                    self._loading_ns[alone].append(took)
            if not self._length:
                self._length = sequence_length(batch)
            return batch

        dataloader._BaseDataLoaderIter.__next__ = noted

    def _first_batch(self, original: Any, iterator: Any) -> Any:
        self._layer.met_gpu = False
        batch = original(iterator)
        if not self._layer.met_gpu:
            self._on_cpu.add(iterator)
        return batch

    def _iterated(self, args: Any, kwargs: Any) -> None:
        sampler = getattr(args[0], "batch_sampler", None)
        size = args[0].batch_size or getattr(sampler, "batch_size", None) or 0
        key = (size, torch.is_grad_enabled())
        self._loaders[key] = self._loaders.get(key, 0) + 1

    def _clips(self, args: Any, kwargs: Any) -> None:
        self._clipped = True

    def _begins_autocast(self, args: Any, kwargs: Any) -> None:
        if args[0].device == "cuda" and args[0]._enabled:
            self._autocasts = True
            self._narrow = self._narrow or self._inside
            if self._inside and not self._autocast and self.module_calls() == self._calls:
                # accelerate's is around the model's own forward.
                self._autocast = str(args[0].fast_dtype).removeprefix("torch.")

    def _scales(self, args: Any, kwargs: Any) -> None:
        self._scaled = self._scaled or args[0].is_enabled()

    def _goes_back(self, args: Any, kwargs: Any) -> None:
        self.backwards += 1
        if self._given is not None:
            # A second pass of the same batch, as in SAM, accumulates nothing.
            before = None if self._went_back is None else self._went_back()
            self._accumulated += before is None or before is not self._given()
            self._went_back, self._given = self._given, None

    def _clears(self, args: Any, kwargs: Any) -> None:
        if not (args[1] if len(args) > 1 else kwargs.get("set_to_none", True)):
            self._kept_gradients = True

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # The arguments of the method: the optimizer itself comes first.
        given = [value for value in (*args[1:], kwargs.get("closure")) if value is not None]
        if not all(map(_is_lightnings, given)):
            self._closure = True
        self._stepped += 1
        self._batches_of_steps = max(self._batches.values(), default=0)
        if self._accumulated:
            self._accumulations[self._accumulated] += 1
            self._accumulated = 0
        if id(optimizer) not in self._optimizers:
            from oomph.levers._shared.parameter_steps import how_it_updates

            gradients = (p.grad for g in optimizer.param_groups for p in g["params"])
            self._optimizers[id(optimizer)] = dict(
                kind=type(optimizer).__name__,
                updates=how_it_updates(optimizer),
                fused=bool(optimizer.defaults.get("fused")),
                foreach=optimizer.defaults.get("foreach"),
                sparse=any(grad is not None and grad.is_sparse for grad in gradients),
            )

    def model(self, root: torch.nn.Module) -> None:
        """A model, just before it first runs."""
        title = type(root).__name__
        for name, module in root.named_modules():
            own = list(module.parameters(recurse=False))
            self._narrow = self._narrow or any(p.dtype in NARROW for p in own)
            self._modules.append(
                dict(
                    name=f"{title}.{name}" if name else title,
                    kind=type(module).__name__,
                    container=isinstance(module, _CONTAINERS),
                    coupled=isinstance(module, _COUPLED) and is_training(module),
                    inplace=getattr(module, "inplace", None),
                    parameters=sum(p.numel() for p in own),
                    trained=sum(p.numel() for p in own if p.requires_grad),
                )
            )

    def called(self, args: tuple, kwargs: dict, output: Any = None) -> None:
        """An outermost module has run."""
        self._inside = False
        graph = torch.is_grad_enabled()
        if graph:
            first = next(cuda_tensors((args, kwargs)), None)
            self._given = first if first is None else weakref.ref(first)
        if all(self._rank):
            return
        # Transforms of single samples run on the CPU, evaluation and rollouts without gradients, and many scripts try a
        # model on one sample first.
        on_gpu = any(True for _ in cuda_tensors((args, kwargs, output)))
        looked = self._looked[on_gpu, graph] = self._looked[on_gpu, graph] + 1
        if looked <= LOOKED:
            rows = next((t.shape[0] for t in cuda_tensors(output) if t.dim()), 0)
            found = sizes_of_call((args, kwargs), rows)
            rank = (on_gpu, graph, found.get("batch", 0) > 1)
            if not self._input or rank > self._rank:
                self._rank, self._input = rank, found

    def forward(self, root: torch.nn.Module) -> None:
        """An outermost module is about to run."""
        self._inside = True
        self._calls = self.module_calls()
        if not is_training(root) and torch.is_grad_enabled() and not self._graph_in_evaluation:
            self._graph_in_evaluation = any(p.requires_grad for p in root.parameters())
        if not self._autocast and not self._autocast_elsewhere:
            self._autocast_elsewhere = _casts_elsewhere(root)
        if not self._autocast and torch.is_autocast_enabled("cuda"):
            self._autocast = str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")

    @property
    def _batches_of_passes(self) -> int:
        """Of a job without loaders, where one optimizer uses what backward passes have accumulated."""
        if len(self._optimizers) != 1 or self._closure or not self._accumulations:
            return 0
        return self._accumulations.most_common(1)[0][0] * self._stepped

    @property
    def _batches_in_all(self) -> int:
        """What all steps, or all passes of a job that only infers, have taken."""
        if not self._stepped:
            return max(self._batches.values(), default=0)
        return self._batches_of_steps or self._batches_of_passes

    def as_dict(self, cpu_ns: int) -> dict[str, Any]:
        """All of it. `cpu_ns` is what a step takes for operators on tensors of the CPU: a loader's are among them, if there is one."""
        loading = self._loading_ns[True] or self._loading_ns[False] or [0]
        return dict(
            loaders=[
                dict(batch_size=size, count=count, trains=trains)
                for (size, trains), count in self._loaders.items()
            ],
            length=self._length,
            batches=self._batches_in_all,
            loading_ns=max(int(statistics.median(loading)), cpu_ns),
            autocast=self._autocast,
            autocast_elsewhere=self._autocast_elsewhere and not self._autocast,
            scaled=self._scaled,
            precision_in_vain=(self._scaled or self._autocasts)
            and not (self._autocast or self._autocast_elsewhere or self._narrow),
            clipped=self._clipped,
            backwards=self.backwards,
            closure=self._closure,
            mapped=self._mapped,
            compiled=self.compiled,
            compilations=self.compilations,
            kept_gradients=self._kept_gradients,
            graph=self.graph,
            cache=self._cache,
            cast_on_gpu=self._cast_on_gpu,
            loaded_on_gpu=self._loaded_on_gpu,
            input=self._input,
            benchmark=torch.backends.cudnn.benchmark,
            tf32=allows_tf32(),
            graph_in_evaluation=self._graph_in_evaluation,
            modules=self._modules,
            optimizers=list(self._optimizers.values()),
            offloads=self._offloads,
        )


def _offloads(hooks: Any) -> bool:
    """Whether a script's `hooks` on what autograd saves are there to keep it elsewhere; checkpointing has hooks of its own."""
    module = type(hooks).__module__
    return module == "torch.autograd.graph" or not module.startswith("torch.")


def _casts_elsewhere(root: torch.nn.Module) -> bool:
    """Whether mixed precision is switched on for the CPU alone, while `root`, on the GPU, is called."""
    if torch.is_autocast_enabled("cuda") or not torch.is_autocast_enabled("cpu"):
        return False
    return any(p.is_cuda for p in root.parameters())


def allows_tf32() -> bool:
    """Whether products of fp32 may use TF32.

    After a script uses the setting of 2.9 and later, PyTorch raises when the older one is read.
    """
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.backends.cuda.matmul.allow_tf32 if precision is None else precision == "tf32"
