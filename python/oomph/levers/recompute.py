"""Selective recomputation: cheap results are computed again instead of kept."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from oomph.levers.base import Lever
from oomph.levers.checkpoint import _RandomStates, refuse_compiled, refuse_in_compiled
from oomph.levers.forward import Places, around_forward
from oomph.levers.job import Job

Node = Any
"""A node of the autograd graph (`torch.autograd.graph.Node`)."""

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

RESHAPES = {
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
}
SAME = {"CloneBackward0", "AliasBackward0"}


class Recompute(Lever):
    """Results of chosen modules are not kept for the backward pass, but computed again in it.

    Needs: modules of one tensor in and one out, whose result follows from it, parameters and buffers
    alone. Changes: who would save such a result (a product, a convolution) keeps the module's input
    instead, and modules of several operators keep their input instead of what is inside. The input of
    a module may be the result of another. Results: bitwise the same: autocast and random states are
    those of the first time, and BatchNorm updates its statistics once.

    Inert without gradients, inside of checkpointed and offloaded modules, and where nobody saves the
    result. Refused by name: modules that change their input or their buffers, modules that are compiled.
    """

    name = "recompute"
    order = 60  # inside of checkpointing and offloading, which decide over what is in them

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.modules = modules
        self.places = Places(modules)
        self.graph: _Graph | None = None
        self.called: set[str] = set()
        self.recomputed: set[str] = set()
        self.kept: dict[str, list[str]] = {}
        self.backwards = 0

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        job.on_model.append(self._model)
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)
        job.after_backward.append(self._after_backward)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            around_forward(module, self._around(name), self.order)

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.graph = _Graph(_tensors((args, kwargs))) if torch.is_grad_enabled() else None

    def _leave(self, root: torch.nn.Module, output: Any) -> None:
        graph, self.graph = self.graph, None
        if graph is not None:
            for tensor in _tensors(output):
                graph.settle(tensor.grad_fn)

    def _after_backward(self) -> None:
        self.backwards += 1

    def _around(self, name: str) -> Callable[..., Any]:
        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if torch.compiler.is_compiling():
                refuse_in_compiled(self, name)
            graph = self.graph
            # In a backward pass somebody else computes this module again.
            if graph is None or torch._C._current_graph_task_id() != -1:
                return forward(*args, **kwargs)
            why = _unsuited(module, args, kwargs)
            if why is not None:
                self._keep(why, name)
                return forward(*args, **kwargs)
            return self._call(graph, name, module, forward, args[0])

        return around

    def _keep(self, why: str, name: str) -> None:
        names = self.kept.setdefault(why, [])
        if name not in names:
            names.append(name)

    def _call(
        self,
        graph: _Graph,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        x: torch.Tensor,
    ) -> Any:
        # Whatever this input was made of has saved what it saves.
        graph.settle(x.grad_fn)
        producer, inplace = x.grad_fn, bool(getattr(module, "inplace", False))
        source = graph.origin(x)
        if source is None:
            if inplace:
                self._keep("they write over an input that nobody computes again", name)
                return forward(x)
            source = _Given(name, x)
        version = x._version
        kind = _Operator if _is_operator(module, x) else _Composite
        call = kind(self, name, module, forward, x, source)
        output = call.first(x)
        if not isinstance(output, torch.Tensor) or output.grad_fn in (None, producer):
            return output
        if not inplace and x._version != version:
            raise self.refuse(f"{name} changes its input in place. Leave it out of the plan")
        self.called.add(name)
        graph.results[output.grad_fn] = call
        call.watch(output)
        return output

    def finish(self) -> None:
        """Count the modules that were computed again, and say which were for nothing."""
        self.applied = len(self.recomputed if self.backwards else self.called)
        if problem := self.places.problem():
            self.add_note(problem)
        for why, names in self.kept.items():
            self.add_note(f"{len(names)} left as they are, as {why}: {', '.join(names[:3])}")
        idle = sorted(self.called - self.recomputed)
        if not self.called and not self.kept and not self.places.missing:
            self.add_note(
                "the modules were never called with gradients, so nothing was saved anyway"
            )
        elif self.backwards and idle:
            self.add_note(
                f"{len(idle)} of the modules were never computed again, as nobody saves their results: "
                f"{', '.join(idle[:3])}"
            )

    @classmethod
    def by_hand(cls, modules: list[str]) -> str:
        """PyTorch's selective checkpointing of the blocks around: the same idea, operator by operator."""
        return (
            "from functools import partial\n"
            "from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\n"
            "aten = torch.ops.aten\n"
            "kept = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default,\n"
            "        aten._scaled_dot_product_flash_attention.default,\n"
            "        aten._scaled_dot_product_efficient_attention.default]\n"
            "contexts = partial(create_selective_checkpoint_contexts, kept)\n"
            f"for block in blocks:  # those around {', '.join(modules[:3])}, …\n"
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)\n"
            "# it looks at each operator from Python, which the lever does not\n"
        )


def _unsuited(module: torch.nn.Module, args: tuple, kwargs: dict) -> str | None:
    """Why this call is not computed again; None if it may be."""
    if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
        return "they take other arguments than one tensor"
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return "hooks on saved tensors are off"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "what they save is another's: they are checkpointed, offloaded or inside of such a module"
    if isinstance(module, torch.nn.modules.batchnorm._NormBase) and not isinstance(
        module, BATCH_NORMS
    ):
        return f"{type(module).__name__} has statistics of its own kind"
    if any(isinstance(part, torch.nn.modules.dropout._DropoutNd) for part in module.modules()):
        return "they draw random numbers"
    return None


def _is_operator(module: torch.nn.Module, x: torch.Tensor) -> bool:
    kind = next((kind for kind in OPERATORS if isinstance(module, kind)), None)
    if kind is None:
        return isinstance(module, _hugging_face_conv1d())
    if "forward" in vars(module):
        return False
    if getattr(type(module).forward, "__wrapped__", type(module).forward) is not getattr(
        kind.forward, "__wrapped__", kind.forward
    ):
        return False
    casts = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float32
    return not (casts and isinstance(module, NORMS))


def _hugging_face_conv1d() -> tuple:
    """Its `Conv1D`, a product with a weight that lies the other way round, if it is imported."""
    utilities = sys.modules.get("transformers.pytorch_utils")
    return (utilities.Conv1D,) if utilities is not None else ()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# ---- what is computed again ----


class _Given:
    """A tensor that is kept."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor, self.version = name, tensor.detach(), tensor._version

    def expect(self) -> None:
        """It is there anyway."""

    def value(self) -> torch.Tensor:
        """The tensor, unchanged."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"the input of {self.name} was changed in place between its forward and its backward "
                "pass, so that it cannot be computed again: leave it out of the plan (oomph recompute)"
            )
        return self.tensor


class _Producer:
    """Something that can be computed again, for several who want it."""

    uses = served = 0
    cached: torch.Tensor | None = None

    def expect(self) -> None:
        """Once more somebody will take it."""
        self.uses += 1

    def compute(self) -> torch.Tensor:
        raise NotImplementedError

    def take(self) -> torch.Tensor:
        """The value; the last who takes it lets it go."""
        value = self.cached if self.cached is not None else self.compute()
        self.served += 1
        if self.served >= self.uses:
            self.cached, self.served = None, 0
        else:
            self.cached = value
        return value


class _Recipe:
    """A tensor that follows from a producer's value by casts and views."""

    def __init__(self, producer: _Producer, steps: tuple, tensor: torch.Tensor) -> None:
        self.producer, self.steps = producer, steps
        self.shape, self.stride = tensor.shape, tensor.stride()

    def expect(self) -> None:
        self.producer.expect()

    def value(self) -> torch.Tensor:
        """In the layout that it had."""
        with torch.no_grad():
            tensor = self.producer.take()
            for step in self.steps:
                tensor = step(tensor)
            if tensor.stride() != self.stride:
                tensor = torch.empty_strided(
                    self.shape, self.stride, dtype=tensor.dtype, device=tensor.device
                ).copy_(tensor)
        return tensor


class _Call(_Producer):
    """One call of a module."""

    def __init__(
        self,
        lever: Recompute,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        x: torch.Tensor,
        source: _Given | _Recipe,
    ) -> None:
        self.lever, self.name, self.module, self.forward = lever, name, module, forward
        self.source, self.device = source, x.device.type
        self.autocast = torch.is_autocast_enabled(self.device)
        self.dtype = torch.get_autocast_dtype(self.device) if self.autocast else None
        self.fixed = self._versions()
        self.output: weakref.ref[torch.Tensor] | None = None
        self.version = 0

    def first(self, x: torch.Tensor) -> Any:
        """The forward pass."""
        raise NotImplementedError

    def watch(self, output: torch.Tensor) -> None:
        """`output` must not change before it is used: nobody records that without gradients."""
        self.output, self.version = weakref.ref(output), output._version

    def is_as_made(self) -> bool:
        output = self.output() if self.output is not None else None
        return output is None or output._version == self.version

    def expect(self) -> None:
        if not self.uses:
            self.source.expect()
        super().expect()

    def _versions(self) -> list[int]:
        return [p._version for p in self.module.parameters()]

    def begin(self) -> torch.Tensor:
        """The module's input, when everything is as it was."""
        if self._versions() != self.fixed:
            raise RuntimeError(
                f"parameters of {self.name} were changed between its forward and its backward pass, so "
                "that it cannot be computed again as it was (oomph recompute)"
            )
        self.lever.recomputed.add(self.name)
        return self.source.value()

    def precision(self) -> Any:
        """Autocast as it was."""
        if not self.autocast and not torch.is_autocast_enabled(self.device):
            return contextlib.nullcontext()
        return torch.autocast(
            self.device, dtype=self.dtype, enabled=self.autocast, cache_enabled=False
        )


class _Operator(_Call):
    """A module of one operator: what it saves, others treat as theirs."""

    def first(self, x: torch.Tensor) -> Any:
        module = self.module
        self.batch_norm = isinstance(module, BATCH_NORMS) and (
            module.training or module.running_mean is None
        )
        self.inplace = bool(getattr(module, "inplace", False))
        return self.forward(x)

    def compute(self) -> torch.Tensor:
        with torch.no_grad(), self.precision():
            x = self.begin()
            if self.batch_norm:
                # Without the running statistics, which do not enter the result.
                module = self.module
                return torch.nn.functional.batch_norm(
                    x, None, None, module.weight, module.bias, True, 0.0, module.eps
                )
            if self.inplace and self.source.producer.cached is not None:
                x = x.clone()
            return self.forward(x)

    def _versions(self) -> list[int]:
        versions = super()._versions()
        if isinstance(self.module, BATCH_NORMS) and not self.module.training:
            versions += [buffer._version for buffer in self.module.buffers()]
        return versions


class _Composite(_Call):
    """A module of several operators: what they save is computed again too."""

    def first(self, x: torch.Tensor) -> Any:
        self.requires_grad = x.requires_grad
        self.parts = list(self.module.modules())
        self.modes = [part.training for part in self.parts]
        self.random = None if _is_pure(self.module) else _RandomStates()
        self.count = 0
        self.inner: list[torch.Tensor | None] = []
        self.source.expect()
        buffers = [(buffer, buffer._version) for buffer in self.module.buffers()]
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            output = self.forward(x)
        if any(buffer._version != version for buffer, version in buffers):
            raise self.lever.refuse(
                f"{self.name} changes its buffers. Leave it out of the plan, or checkpoint it"
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
        return value

    def compute(self) -> torch.Tensor:
        inner: list[torch.Tensor | None] = []
        outer = [part.training for part in self.parts]
        with torch.enable_grad(), self.precision():
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
            raise RuntimeError(
                f"{self.name} saved {self.count} tensors for the backward pass and {len(inner)} when it "
                "was computed again: leave it out of the plan (oomph recompute)"
            )
        self.inner = inner
        return output.detach()

    def _set_modes(self, modes: list[bool]) -> None:
        for part, mode in zip(self.parts, modes, strict=True):
            if part.training != mode:
                part.training = mode


def _is_pure(module: torch.nn.Module) -> bool:
    """Known to draw no random numbers: asking all generators takes longer than the module."""
    kind = type(module)
    return isinstance(module, OPERATORS) or (
        kind.__module__.startswith("transformers.")
        and ("activations" in kind.__module__ or kind.__name__.endswith(("RMSNorm", "LayerNorm")))
    )


def _lost(_: None) -> torch.Tensor:
    raise RuntimeError("a backward pass inside of a recomputation")


class _Product(_Producer):
    """A product, element by element, of which a factor is computed again: a gated activation."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def compute(self) -> torch.Tensor:
        # Whoever saved this product has its backward pass before the product's own.
        with torch.no_grad():
            return self.node._saved_self * self.node._saved_other


# ---- who saved what ----


class _Graph:
    """The autograd graph of one forward pass of a model, as far as it is built."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self.results: dict[Node, _Producer] = {}
        self.seen: set[Node] = {t.grad_fn for t in inputs if t.grad_fn is not None}
        self.replaced: dict[Node, dict[str, _Recipe]] = {}

    def settle(self, node: Node | None) -> None:
        """Let `node` and what is before it keep recipes in place of results that can be computed again."""
        # What is before a node comes first: products are known when somebody has saved them.
        waiting = [(node, False)]
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                self._replace(node)
            elif node is not None and node not in self.seen:
                self.seen.add(node)
                waiting.append((node, True))
                waiting.extend([(before, False) for before, _ in node.next_functions])

    def origin(self, tensor: torch.Tensor) -> _Recipe | None:
        """How to compute `tensor` again; None if it cannot be."""
        found = self._trace(tensor.grad_fn, tensor.output_nr)
        return _recipe(found, tensor) if found is not None else None

    def _replace(self, node: Node) -> None:
        for saved, edge in SAVED.get(node.name(), {}).items():
            if edge is None:
                producer = self.results.get(node)
                found = (producer, ()) if producer is not None else None
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
                self.replaced.setdefault(node, {})[saved] = made[0]

    def _trace(self, node: Node | None, number: int) -> tuple[_Producer, tuple] | None:
        """The producer of output `number` of a node, and the casts and views in between."""
        steps: list[Callable] = []
        while node is not None:
            producer = self.results.get(node) or self._product(node)
            if producer is not None:
                if number or (isinstance(producer, _Call) and not producer.is_as_made()):
                    return None
                return producer, tuple(reversed(steps))
            step = _step(node)
            if step is None:
                return None
            steps.append(step)
            node, number = node.next_functions[0]
        return None

    def _product(self, node: Node) -> _Product | None:
        if node.name() != "MulBackward0":
            return None
        replaced = self.replaced.get(node)
        if not replaced:
            return None
        for saved in ("self", "other"):
            if saved not in replaced and getattr(node, f"_saved_{saved}") is None:
                return None
        for recipe in replaced.values():
            recipe.expect()
        product = self.results[node] = _Product(node)
        return product


def _recipe(found: tuple[_Producer, tuple], tensor: torch.Tensor) -> _Recipe | None:
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return None
    return _Recipe(*found, tensor)


def _unpack(saved: Any) -> torch.Tensor:
    return saved.value() if isinstance(saved, _Recipe) else saved


def _step(node: Node) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What a node of one input does to it, if that is a cast or a view of all of it."""
    name = node.name()
    if name in SAME:
        return _same
    if name == "TBackward0":
        return torch.t
    if name == "TransposeBackward0":
        first, second = _signed(node._saved_dim0), _signed(node._saved_dim1)
        return lambda tensor: tensor.transpose(first, second)
    if name == "PermuteBackward0":
        order = [_signed(dim) for dim in node._saved_dims]
        return lambda tensor: tensor.permute(order)
    if name in RESHAPES:
        (made,) = node._input_metadata
        return lambda tensor: tensor.reshape(made.shape)
    if name == "ToCopyBackward0":
        (made,) = node._input_metadata
        return lambda tensor: tensor.to(made.device, made.dtype)
    return None


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _signed(dim: int) -> int:
    """Autograd keeps -1 as an unsigned number."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


LEVER = Recompute
