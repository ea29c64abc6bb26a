"""Selective recomputation: cheap results are recomputed instead of kept."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from oomph._older_python import zip
from oomph._random_states import RandomStates
from oomph._virtual_gpu.library import is_loaded
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import Lever, failure
from oomph.levers._shared.compiled import refuse_compiled, refuse_in_compiled
from oomph.levers._shared.deferred_rows import node as node_of
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job
from oomph.levers._shared.recomputation import has_saved_tensor_hooks

Node = Any
"""A node of the autograd graph (`torch.autograd.graph.Node`)."""

AccumulateGrad = torch._C._functions.AccumulateGrad

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.RMSNorm)
"""Autocast computes them in fp32, and they then save a copy of their input."""
PRODUCTS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
ACTIVATIONS = (
    torch.nn.ReLU,
    torch.nn.GELU,
    torch.nn.SiLU,
    torch.nn.Mish,
    torch.nn.Hardswish,
    torch.nn.LeakyReLU,
    torch.nn.Sigmoid,
    torch.nn.Tanh,
)
OPERATORS = (*BATCH_NORMS, *NORMS, *PRODUCTS, *ACTIVATIONS)
"""Modules of one operator, which saves its input, its result, parameters and little else."""

SAVED: dict[str, dict[str, int | None]] = {
    "AddmmBackward0": {"mat1": 1},
    "MmBackward0": {"self": 0},
    "BmmBackward0": {"self": 0, "mat2": 1},
    "LinearBackward0": {"input": 0},
    "ConvolutionBackward0": {"input": 0},
    "MulBackward0": {"self": 0, "other": 1},
    "CudnnBatchNormBackward0": {"input": 0},
    "NativeBatchNormBackward0": {"input": 0},
    "NativeLayerNormBackward0": {"input": 0},
    "NativeGroupNormBackward0": {"input": 0},
    "FusedRmsNormBackward0": {"input": 0},
    "MaxPool2DWithIndicesBackward0": {"self": 0},
    "AvgPool2DBackward0": {"self": 0},
    "AdaptiveAvgPool2DBackward0": {"self": 0},
    "GeluBackward0": {"self": 0},
    "SiluBackward0": {"self": 0},
    "MishBackward0": {"self": 0},
    "HardswishBackward0": {"self": 0},
    "LeakyReluBackward0": {"self": 0},
    "ReluBackward0": {"result": None},
    "SigmoidBackward0": {"result": None},
    "TanhBackward0": {"result": None},
}
"""What nodes save of their arguments, by the number of the edge; None is their own result."""

PRODUCT_NODES = ("AddmmBackward0", "MmBackward0", "LinearBackward0", "ConvolutionBackward0")
"""Nodes of `PRODUCTS`, which save what they are given as the first of `SAVED`."""

BATCH_NORM_NODES = ("CudnnBatchNormBackward0", "NativeBatchNormBackward0")
"""Nodes that save the mean and the inverse deviation of the batch."""

DATA = {
    "AddmmBackward0": 1,
    "LinearBackward0": 0,
    "ConvolutionBackward0": 0,
    "CudnnBatchNormBackward0": 0,
    "NativeBatchNormBackward0": 0,
    "NativeLayerNormBackward0": 0,
    "NativeGroupNormBackward0": 0,
    "FusedRmsNormBackward0": 0,
}
"""The edge for activations; the others lead to parameters. Activations on the other edges are ignored,
and thus kept."""


COMPARED = 16
"""Parts in which two results of a batch normalization are compared."""


def _signed(dim: int) -> int:
    """Autograd keeps -1 as an unsigned number."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


def _same(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    return tensor


def _reshape(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    return tensor.reshape(node._input_metadata[0].shape)


def _cast(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    made = node._input_metadata[0]
    return tensor.to(made.device, made.dtype)


def _transpose(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    return tensor.transpose(_signed(node._saved_dim0), _signed(node._saved_dim1))


def _permute(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    return tensor.permute([_signed(dim) for dim in node._saved_dims])


STEPS: dict[str, Callable[[torch.Tensor, Node], torch.Tensor]] = {
    "ToCopyBackward0": _cast,
    "ViewBackward0": _reshape,
    "UnsafeViewBackward0": _reshape,
    "ReshapeAliasBackward0": _reshape,
    "SqueezeBackward0": _reshape,
    "SqueezeBackward1": _reshape,
    "UnsqueezeBackward0": _reshape,
    "TBackward0": lambda tensor, node: tensor.t(),
    "TransposeBackward0": _transpose,
    "PermuteBackward0": _permute,
    "CloneBackward0": _same,
    "AliasBackward0": _same,
}
"""Nodes of one input that cast it or view all of it, and what they do."""


class Recompute(Lever):
    """Recomputes results of chosen modules in the backward pass instead of keeping them.

    Needs: modules with one tensor in and one out, whose result depends only on it, parameters and
    buffers. Changes: operators that would save such a result (a product, a convolution) keep the module's input
    instead, and modules of several operators keep their input instead of inner results. The input of
    a module may be the result of another. Results: bitwise the same: autocast and random states are
    those of the first pass, and BatchNorm updates its statistics once.

    Inert without gradients, inside checkpointed and offloaded modules, and if no operator saves the
    result. Refused by name: modules that change their input or their buffers, modules that are compiled.
    """

    name = "recompute"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.modules = modules
        self.places = NamedModules(modules)
        self.graph: _Graph | None = None
        self.ways: _Ways = {}
        self.called: set[str] = set()
        self.recomputed: set[str] = set()
        self.kept: dict[str, list[str]] = {}
        self.backwards = 0

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        self.job = job
        job.on_model.append(self._model)
        for enter, leave in (
            (job.on_enter, job.on_leave),
            (job.on_part_enter, job.on_part_leave),
        ):
            enter.append(self._enter)
            leave.append(self._leave)
        job.after_backward.append(self._after_backward)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            around_forward(module, self._around(_Place(self, name, module)), self.order)

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        inputs = _tensors((args, kwargs))
        self.graph = _Graph(inputs, self.ways) if torch.is_grad_enabled() else None

    def _leave(self, root: torch.nn.Module, output: Any) -> None:
        graph, self.graph = self.graph, None
        if graph is not None:
            for tensor in _tensors(output):
                graph.settle(node_of(tensor), "")

    def _after_backward(self) -> None:
        self.backwards += 1

    def _around(self, place: _Place) -> Callable[..., Any]:
        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if torch.compiler.is_compiling():
                refuse_in_compiled(self, place.name)
            graph = self.graph
            # In a backward pass, another lever is recomputing this module.
            if graph is None or torch._C._current_graph_task_id() != self.job.graph_task:
                return forward(*args, **kwargs)
            why = place.unsuited or _unsuited(args, kwargs)
            if why is not None:
                self._keep(why, place.name)
                return forward(*args, **kwargs)
            return self._call(graph, place, forward, args[0])

        return around

    def _keep(self, why: str, name: str) -> None:
        names = self.kept.setdefault(why, [])
        if name not in names:
            names.append(name)

    def _call(
        self, graph: _Graph, place: _Place, forward: Callable[..., Any], x: torch.Tensor
    ) -> Any:
        node, inplace = x.grad_fn, bool(getattr(place.module, "inplace", False))
        # Whatever this input was made of has saved what it saves.
        graph.settle(node, place.name)
        source = graph.origin(x)
        if source is None:
            if inplace:
                self._keep("they overwrite an input that is not recomputed", place.name)
                return forward(x)
            source = _Given(place.name, x)
        version = x._version
        call = (_Operator if place.is_operator(x) else _Composite)(place, forward, x, source)
        output = call.first(x)
        if not isinstance(output, torch.Tensor) or output.grad_fn in (None, node):
            return output
        if place.is_product and isinstance(source, _Given):
            call.source = _Argument.of(output, x) or source
        if not inplace and x._version != version:
            why = f"{place.name} changes its input in place. Leave it out of the plan"
            raise self.refuse(why, modules=[place.name])
        self.called.add(place.name)
        graph.add(output.grad_fn, call)
        call.watch(output)
        return output

    def finish(self) -> None:
        """Count the modules that were recomputed, and report those without effect."""
        self.applied = len(self.recomputed if self.backwards else self.called)
        if problem := self.places.problem():
            self.add_note(problem)
        for why, kept in self.kept.items():
            # Of a module that is called several times, some calls may be of no use.
            names = [name for name in kept if name not in self.recomputed]
            if not names:
                continue
            self.add_note(f"{len(names)} skipped because {why}: {', '.join(names[:3])}")
        idle = sorted(self.called - self.recomputed)
        if not self.called and not self.kept and not self.places.missing:
            self.add_note(
                "the modules were never called with gradients, so they saved nothing anyway"
            )
        elif self.backwards and idle:
            self.add_note(
                f"{len(idle)} of the modules were never recomputed, because their results are not saved: "
                f"{', '.join(idle[:3])}"
            )


class _Place:
    """A chosen module, and what holds for all of its calls."""

    def __init__(self, lever: Recompute, name: str, module: torch.nn.Module) -> None:
        self.lever, self.name, self.module = lever, name, module
        self.parts = list(module.modules())
        self.unsuited: str | None = None
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and not isinstance(
            module, BATCH_NORMS
        ):
            self.unsuited = f"{type(module).__name__} has unknown statistics"
        elif any(isinstance(part, torch.nn.modules.dropout._DropoutNd) for part in self.parts):
            self.unsuited = "they draw random numbers"
        kind = next(
            (k for k in (*OPERATORS, *_hugging_face_conv1d()) if isinstance(module, k)), None
        )
        self.is_one_operator = (
            kind is not None
            and "forward" not in vars(module)
            and _original(type(module).forward) is _original(kind.forward)
        )
        self.is_product = self.is_one_operator and isinstance(
            module, (*PRODUCTS, *_hugging_face_conv1d())
        )
        self.is_norm = isinstance(module, NORMS)
        self.is_batch_norm = isinstance(module, BATCH_NORMS)
        self.normalizes_alike: dict[Any, bool] = {}
        """By the input's shape, strides and type: whether the batch's statistics give the same bits again."""
        # Reading all generators takes longer than such a module.
        made_by = type(module).__module__
        self.is_pure = made_by.startswith("transformers.") and (
            "activations" in made_by or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
        )

    def is_operator(self, x: torch.Tensor) -> bool:
        """Whether nothing is saved inside but `x`, the result and small things."""
        casts = self.is_norm and x.dtype != torch.float32
        return self.is_one_operator and not (casts and torch.is_autocast_enabled(x.device.type))

    def versions(self) -> list[int]:
        """They show whether parameters have changed."""
        return [p._version for m in self.parts for p in m._parameters.values() if p is not None]


def _original(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _unsuited(args: tuple, kwargs: dict) -> str | None:
    """Why this call is not recomputed; None if it may be."""
    if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
        return "they take arguments other than one tensor"
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return "hooks on saved tensors are off"
    if has_saved_tensor_hooks():
        return "they are checkpointed, offloaded or inside such a module"
    return None


def _hugging_face_conv1d() -> tuple:
    """Its `Conv1D`, a product with a weight that lies the other way round, if it is imported."""
    utilities = sys.modules.get("transformers.pytorch_utils")
    return (utilities.Conv1D,) if utilities is not None else ()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# ---- what is recomputed ----


class _Given:
    """A tensor that is kept."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor, self.version = name, tensor.detach(), tensor._version

    def expect(self) -> None:
        """It is there anyway."""

    def value(self) -> torch.Tensor:
        """The tensor, unchanged."""
        if self.tensor._version != self.version:
            raise failure(
                "recompute",
                f"the input of {self.name} was changed in place between its forward and its backward "
                "pass, so that it cannot be computed again: leave it out of the plan",
                self.name,
            )
        return self.tensor


class _Argument:
    """The input of a product as the product itself saves it: already in its compute type."""

    def __init__(self, node: Node, name: str, shape: torch.Size) -> None:
        self.node, self.name, self.shape = node, f"_saved_{name}", shape

    @classmethod
    def of(cls, output: torch.Tensor, x: torch.Tensor) -> _Argument | None:
        """The argument `x` of the product that made `output`; None where the product keeps nothing."""
        node = output.grad_fn
        while node is not None and _kind(node)[0] in STEPS:
            node = node.next_functions[0][0]
        if node is None or _kind(node)[0] not in PRODUCT_NODES:
            return None
        (name,) = SAVED[_kind(node)[0]]
        kept = getattr(node, f"_saved_{name}")
        return cls(node, name, x.shape) if kept is not None and kept.numel() == x.numel() else None

    def expect(self) -> None:
        """It is there anyway."""

    def value(self) -> torch.Tensor:
        """Autograd looks whether it was changed."""
        return getattr(self.node, self.name).reshape(self.shape)


@functools.cache
def _empty(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


class _Producer:
    """Something that can be recomputed, with several consumers."""

    uses = served = 0
    cached: torch.Tensor | None = None

    def expect(self) -> None:
        """Add a consumer."""
        self.uses += 1

    def compute(self) -> torch.Tensor:
        """Recompute it, without recording gradients unless it turns them on itself."""
        raise NotImplementedError

    def take(self) -> torch.Tensor:
        """The value; the last consumer frees it."""
        value = self.cached if self.cached is not None else self.compute()
        self.served += 1
        if self.served >= self.uses:
            self.cached, self.served = None, 0
        else:
            self.cached = value
        return value


class _Recipe:
    """A tensor that follows from a producer's value by casts and views."""

    def __init__(self, producer: _Producer, steps: list[Node], tensor: torch.Tensor) -> None:
        self.producer, self.steps = producer, steps
        self.shape, self.stride = tensor.shape, tensor.stride()

    def expect(self) -> None:
        self.producer.expect()

    def value(self) -> torch.Tensor:
        """In the layout that it had."""
        with torch.no_grad():
            tensor = self.producer.take()
            for node in reversed(self.steps):
                tensor = STEPS[_kind(node)[0]](tensor, node)
            if tensor.stride() != self.stride:
                tensor = torch.empty_strided(
                    self.shape, self.stride, dtype=tensor.dtype, device=tensor.device
                ).copy_(tensor)
        return tensor


class _Call(_Producer):
    """One call of a module."""

    def __init__(
        self,
        place: _Place,
        forward: Callable[..., Any],
        x: torch.Tensor,
        source: _Given | _Recipe,
    ) -> None:
        self.place, self.forward, self.source = place, forward, source
        self.autocast = Autocast(x.device.type)
        self.fixed = place.versions()
        self.output: torch.Tensor | None = None
        self.version = 0

    def first(self, x: torch.Tensor) -> Any:
        """The forward pass."""
        raise NotImplementedError

    def watch(self, output: torch.Tensor) -> None:
        """`output` must not change before it is used: without gradients no version counter shows it."""
        # Without contents, it goes on counting what is written to the result, also when that is gone.
        self.output = output.detach()
        self.output.data = _empty(output.dtype, output.device)
        self.version = self.output._version

    def is_as_made(self) -> bool:
        return self.output is None or self.output._version == self.version

    def expect(self) -> None:
        if not self.uses:
            self.source.expect()
        super().expect()

    def begin(self) -> torch.Tensor:
        """The module's input, when everything is as it was."""
        place = self.place
        if place.versions() != self.fixed:
            raise failure(
                "recompute",
                f"parameters of {place.name} were changed between its forward and its backward pass, so "
                "that it cannot be computed again as it was",
                place.name,
            )
        place.lever.recomputed.add(place.name)
        return self.source.value()


class _Operator(_Call):
    """A module of one operator: what it saves, others treat as theirs."""

    def first(self, x: torch.Tensor) -> Any:
        module = self.place.module
        self.batch_norm = False
        if self.place.is_batch_norm:
            self.batch_norm = module.training or module.running_mean is None
            self.statistics = [
                buffer._version for buffer in module._buffers.values() if buffer is not None
            ]
        output = self.forward(x)
        self.node = output.grad_fn if self.batch_norm else None
        return output

    def compute(self) -> torch.Tensor:
        module = self.place.module
        with self.autocast.again(caches=False):
            x = self.begin()
            if self.batch_norm:
                return self._normalize(x)
            if self.place.is_batch_norm:
                now = [buffer._version for buffer in module._buffers.values() if buffer is not None]
                if module.training or now != self.statistics:
                    raise failure(
                        "recompute",
                        f"the statistics of {self.place.name} were changed between its forward and its "
                        "backward pass, so that it cannot be computed again",
                        self.place.name,
                    )
            if getattr(module, "inplace", False) and self.source.producer.cached is not None:
                x = x.clone()
            return self.forward(x)

    def _normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Without the running statistics, which do not enter the result.

        With the batch's own, which the node keeps, its input is read once rather than twice: where that gives
        the same bits, which depends on the kernel that cuDNN has for the shape.
        """
        module: Any = self.place.module
        known = self.place.normalizes_alike
        key = x.shape, x.stride(), x.dtype
        statistics = self._batch_statistics(x) if known.get(key, True) else None
        weight, bias = module.weight, module.bias
        if statistics is not None and key in known:
            return torch.batch_norm_elemt(x, weight, bias, *statistics, module.eps)
        result = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.0, module.eps)
        if statistics is not None:
            mean, deviation = statistics
            known[key] = not _has_contents() or all(
                torch.equal(
                    result[:, c],
                    torch.batch_norm_elemt(
                        x[:, c], weight[c], bias[c], mean[c], deviation[c], module.eps
                    ),
                )
                for c in _parts_of(x.shape[1])
            )
        return result

    def _batch_statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Mean and inverse deviation of each channel, where a kernel could take them."""
        module = self.place.module
        if (
            not x.is_cuda
            or x.dtype != torch.float32
            or module.weight is None
            or _kind(self.node)[0] not in BATCH_NORM_NODES
        ):
            return None
        return self.node._saved_result1, self.node._saved_result2


@functools.cache
def _has_contents() -> bool:
    """Whether tensors on the GPU have values to compare: on a virtual one they have none."""
    return not is_loaded()


def _parts_of(channels: int) -> list[slice]:
    """Channels that are compared at a time, so that comparing takes little memory."""
    size = -(-channels // COMPARED)
    return [slice(begin, begin + size) for begin in range(0, channels, size)]


class _Composite(_Call):
    """A module of several operators: what they save is computed again too."""

    def first(self, x: torch.Tensor) -> Any:
        self.requires_grad = x.requires_grad
        self.parts = self.place.parts
        self.modes = [part.training for part in self.parts]
        self.random = None if self.place.is_pure or self.place.is_norm else RandomStates()
        self.count = 0
        self.inner: list[torch.Tensor | None] = []
        self.source.expect()
        buffers = [
            (b, b._version) for part in self.parts for b in part._buffers.values() if b is not None
        ]
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            output = self.forward(x)
        if any(buffer._version != version for buffer, version in buffers):
            raise self.place.lever.refuse(
                f"{self.place.name} changes its buffers. Leave it out of the plan, or checkpoint it",
                modules=[self.place.name],
            )
        if self.random is not None:
            self.random.keep_if_drawn()
        return output

    def expect(self) -> None:
        _Producer.expect(self)

    def _pack(self, tensor: torch.Tensor) -> int:
        self.count += 1
        return self.count - 1

    def _unpack(self, number: int) -> torch.Tensor:
        if not self.inner or self.inner[number] is None:
            output = self.compute()
            if self.uses:
                self.cached = output
        value = self.inner[number]
        self.inner[number] = None
        return value  # type: ignore[return-value]

    def compute(self) -> torch.Tensor:
        inner: list[torch.Tensor | None] = []
        outer = [part.training for part in self.parts]
        with torch.enable_grad(), self.autocast.again(caches=False):
            x = self.begin().detach().requires_grad_(self.requires_grad)
            self._set_modes(self.modes)
            if self.random is not None:
                self.random.restore()
            try:
                with torch.autograd.graph.saved_tensors_hooks(inner.append, _lost):
                    output = self.forward(x)
            finally:
                if self.random is not None:
                    self.random.put_back()
                self._set_modes(outer)
        if len(inner) != self.count:
            raise failure(
                "recompute",
                f"{self.place.name} saved {self.count} tensors for the backward pass and {len(inner)} when it "
                "was computed again: leave it out of the plan",
                self.place.name,
            )
        self.inner = inner
        return output.detach()

    def _set_modes(self, modes: list[bool]) -> None:
        for part, mode in zip(self.parts, modes, strict=True):
            if part.training != mode:
                part.training = mode


def _lost(_: None) -> torch.Tensor:
    raise RuntimeError("a backward pass inside a recomputation")


class _Product(_Producer):
    """A product, element by element, of which a factor is computed again: a gated activation."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def compute(self) -> torch.Tensor:
        # The operator that saved this product runs its backward pass before the product's own.
        return self.node._saved_self * self.node._saved_other


# ---- which operators saved what ----


_KINDS: dict[type, tuple[str, int | None]] = {}
"""Of nodes by their type: their name, and their edge in `DATA`. Asking a node for its name takes longer
than following it."""


def _kind(node: Node) -> tuple[str, int | None]:
    known = _KINDS.get(type(node))
    if known is None:
        name = node.name()
        known = _KINDS[type(node)] = name, DATA.get(name)
    return known


def _before(node: Node) -> list[tuple[int, Node]]:
    """The nodes that activations came from, with the numbers of their edges."""
    data = _kind(node)[1]
    return [
        (number, before)
        for number, (before, _) in enumerate(node.next_functions)
        if before is not None
        and type(before) is not AccumulateGrad
        and (data is None or number == data)
    ]


_Ways = dict[tuple[int, str], tuple[int, list[tuple[tuple[int, ...], type]]]]
"""Of each place where a graph was settled: how many nodes were made since the place before, and how the
nodes that keep recipes are reached from there, edge by edge."""


class _Graph:
    """The autograd graph of one forward pass of a model, as far as it is built."""

    # Nodes by their sequence numbers: many live objects would trigger Python's garbage collector.

    def __init__(self, inputs: list[torch.Tensor], ways: _Ways) -> None:
        self._results: dict[int, tuple[Node, _Producer]] = {}
        self._seen = {t.grad_fn._sequence_nr() for t in inputs if t.grad_fn is not None}
        self._factors: dict[int, tuple[Node, dict[str, _Recipe]]] = {}
        self._replaced: set[int] = set()
        self._ways, self._settled = ways, 0
        self._last: int | None = None

    def add(self, node: Node, producer: _Producer) -> None:
        """What `node` made can be computed again."""
        self._results[node._sequence_nr()] = node, producer

    def producer(self, node: Node) -> _Producer | None:
        """Of what `node` made."""
        number = node._sequence_nr()
        known, producer = self._results.get(number, (None, None))
        if known is node:  # each thread counts for itself
            return producer
        known, factors = self._factors.get(number, (None, None))
        return self._product(node, factors) if known is node else None

    def settle(self, node: Node | None, place: str) -> None:
        """Let `node` and what is before it keep recipes in place of results that can be computed again."""
        if node is None:
            return
        key = self._settled, place
        self._settled += 1
        number = node._sequence_nr()
        made = number - (number if self._last is None else self._last)
        self._last = number
        # Where as many nodes were made as in the pass before, the script did the same again.
        known, ways = self._ways.get(key, (None, []))
        if known == made and all(self._follow(node, *way) for way in ways):
            return
        self._ways[key] = made, _ways_to(self._walk(node), node)

    def _follow(self, node: Node, edges: tuple[int, ...], kind: type) -> bool:
        """Let the node that is there, where it was in the pass before, keep recipes."""
        for edge in edges:
            following = node.next_functions
            node = following[edge][0] if edge < len(following) else None
            if node is None:
                return False
        return type(node) is kind and self._replace(node)

    def _walk(self, node: Node) -> list[Node]:
        """All that is before `node` and was not looked at; those of it that keep recipes."""
        # Visit a node's inputs first: products are known once they are saved.
        waiting: list[tuple[Node, bool]] = [(node, False)]
        found = []
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                if self._replace(node):
                    found.append(node)
                continue
            number = node._sequence_nr()
            if number in self._seen:
                continue
            self._seen.add(number)
            if _kind(node)[0] in SAVED:
                waiting.append((node, True))
            waiting.extend((before, False) for _, before in _before(node))
        return found

    def origin(self, tensor: torch.Tensor) -> _Recipe | None:
        """How to compute `tensor` again; None if it cannot be."""
        found = self._trace(tensor.grad_fn, tensor.output_nr)
        return _recipe(found, tensor) if found is not None else None

    def _replace(self, node: Node) -> bool:
        """Let a node keep recipes; whether there is something that it keeps so."""
        number = node._sequence_nr()
        if number in self._replaced:
            return True
        found: tuple[_Producer, list[Node]] | None
        name = _kind(node)[0]
        for saved, edge in SAVED.get(name, {}).items():
            if edge is None:
                producer = self.producer(node)
                found = (producer, []) if producer is not None else None
            else:
                found = self._trace(*node.next_functions[edge])
            raw = getattr(node, f"_raw_saved_{saved}", None)
            if found is None or raw is None:
                continue
            made: list[_Recipe] = []

            def pack(tensor: torch.Tensor, found: tuple = found, made: list = made) -> Any:
                recipe = _recipe(found, tensor)
                if recipe is None:
                    return tensor
                made.append(recipe)
                return recipe

            try:
                raw.register_hooks(pack, _unpack)
            except RuntimeError:  # nothing was saved here, or it has hooks: it is another's
                continue
            if made:
                made[0].expect()
                self._replaced.add(number)
                if name == "MulBackward0":
                    entry = self._factors.setdefault(number, (node, {}))
                    entry[1][saved] = made[0]
        return number in self._replaced

    def _trace(self, node: Node | None, number: int) -> tuple[_Producer, list[Node]] | None:
        """The producer of output `number` of a node, and the casts and views in between."""
        steps: list[Node] = []
        while node is not None:
            producer = self.producer(node)
            if producer is not None:
                if number or (isinstance(producer, _Call) and not producer.is_as_made()):
                    return None
                return producer, steps
            if _kind(node)[0] not in STEPS:
                return None
            steps.append(node)
            node, number = node.next_functions[0]
        return None

    def _product(self, node: Node, factors: dict[str, _Recipe]) -> _Product | None:
        """Of a node that multiplies element by element, where `factors` of it are computed again."""
        for saved in ("self", "other"):
            if saved not in factors and getattr(node, f"_saved_{saved}") is None:
                return None
        for recipe in factors.values():
            recipe.expect()
        product = _Product(node)
        self.add(node, product)
        return product


def _ways_to(ends: list[Node], node: Node) -> list[tuple[tuple[int, ...], type]]:
    """The shortest ways from `node` to each of `ends`."""
    ways: dict[int, tuple[int, ...]] = {}
    missing = {end._sequence_nr() for end in ends}
    seen = set()
    layer: list[tuple[Node, tuple[int, ...]]] = [(node, ())]
    while missing and layer:
        following = []
        for node, edges in layer:
            number = node._sequence_nr()
            if number in seen:
                continue
            seen.add(number)
            if number in missing:
                missing.discard(number)
                ways[number] = edges
            following += [(before, (*edges, edge)) for edge, before in _before(node)]
        layer = following
    return [(ways[end._sequence_nr()], type(end)) for end in ends]


def _recipe(found: tuple[_Producer, list[Node]], tensor: torch.Tensor) -> _Recipe | None:
    strides = tensor.stride()
    if 0 in strides and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, strides, strict=True)
    ):
        return None
    return _Recipe(*found, tensor)


def _unpack(saved: Any) -> torch.Tensor:
    return saved.value() if isinstance(saved, _Recipe) else saved


LEVER = Recompute
