"""Observes the script for levers, and gives them places to intervene.

`Job` patches PyTorch once; levers add functions to its lists. Functions in a list named `on_…` are called in
order and cannot change what happens, unless stated. A list named `around_…` nests: each function
gets `proceed`, which does what the script requested (the first in the list is the outermost), and
may call, defer or skip it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader

from oomph._import_hooks import on_import

Proceed = Callable[[], Any]


class Backward:
    """A call of `backward`: its tensors and their gradients, which levers may replace."""

    def __init__(self, tensors: Sequence[torch.Tensor], gradients: Sequence[Any]) -> None:
        """`gradients` has one entry per tensor; None means a gradient of 1."""
        self.tensors = list(tensors)
        self.gradients: list[torch.Tensor | None] = list(gradients)

    def scale(self, index: int, factor: Any) -> None:
        """Multiply the gradient of tensor `index` by a number or a tensor without dimensions."""
        tensor, gradient = self.tensors[index], self.gradients[index]
        if gradient is None:
            gradient = torch.ones_like(tensor)
        self.gradients[index] = gradient * factor


class Clipped(list):
    """The parameters whose gradients are clipped."""

    given: dict[str, Any]
    """All arguments of the call, by name."""

    @property
    def limit(self) -> float:
        """Infinity only computes the norm."""
        return float(self.given["max_norm" if "max_norm" in self.given else "clip_value"])


class Job:
    """Calls levers back; observes nothing before `watch`."""

    def __init__(self) -> None:
        """All lists are empty."""
        self.on_model: list[Callable[[torch.nn.Module, dict[str, torch.nn.Module]], None]] = []
        """Called once per outermost module, just before its first forward, with the module and its
        parts by name: the class of the outermost, then the path of `named_modules()`, as the
        recorder and the plan file name them (`GPT`, `GPT.blocks.0`)."""
        self.on_optimizer: list[Callable[[torch.optim.Optimizer], None]] = []
        """Called with each optimizer when its base class has been constructed (`param_groups` and
        `defaults` are there; what its own class adds is not)."""
        self.on_enter: list[Callable[[torch.nn.Module, tuple, dict], None]] = []
        """Called before each forward of an outermost module with its arguments."""
        self.on_arguments: list[
            Callable[[torch.nn.Module, tuple, dict], tuple[tuple, dict] | None]
        ] = []
        """Called before each forward of an outermost module, after `on_enter`; a result other than
        None replaces its arguments."""
        self.on_move: list[Callable[[torch.nn.Module, torch.device], None]] = []
        """Called before a module is moved to a GPU (`module.to(device)`, `module.cuda()`; not for its
        parts), while its parameters are still where they were."""
        self.on_leave: list[Callable[[torch.nn.Module, Any], Any]] = []
        """Called after each forward of an outermost module with its output (None if it raised), in
        the reverse order; a result other than None replaces the output."""
        self.on_part_enter: list[Callable[[torch.nn.Module, tuple, dict], None]] = []
        """Called before a part of a batch runs with its graph in place of the outermost module's call, in
        the backward pass perhaps, with its arguments."""
        self.on_part_leave: list[Callable[[torch.nn.Module, Any], None]] = []
        """Called after it with its output (None if it raised)."""
        self.graph_task = -1
        """The backward pass in which such a part runs; -1 outside of all."""
        self.on_backward: list[Callable[[Backward], None]] = []
        """Called before a backward pass (`Tensor.backward`, `torch.autograd.backward`)."""
        self.after_backward: list[Callable[[], None]] = []
        """Called after it, not if it raised."""
        self.around_step: list[Callable[[torch.optim.Optimizer, Proceed], Any]] = []
        """Around `optimizer.step()`; calls with a closure too."""
        self.around_early_step: list[
            Callable[[torch.optim.Optimizer, list[torch.Tensor], Proceed], Any]
        ] = []
        """Around the step of some parameters by themselves, before the script's own step."""
        self.around_zero_grad: list[Callable[[Any, Proceed], Any]] = []
        """Around `zero_grad()` of an optimizer or a module."""
        self.around_clip: list[Callable[[Clipped, Proceed], Any]] = []
        """Around `clip_grad_norm_` and `clip_grad_value_`, with the parameters."""
        self.around_scheduler: list[Callable[[Any, Proceed], Any]] = []
        """Around `step()` of a learning-rate scheduler."""
        self.around_scaler: list[Callable[[str, Any, Proceed], Any]] = []
        """Around `unscale_`, `step`, `update` of a `GradScaler`, with the method's name and the scaler."""
        self.around_loader: list[Callable[[DataLoader, Any], Any]] = []
        """Given a DataLoader and a fresh iterator over it, returns the iterator that the script gets."""
        self.levers: list[Any] = []
        """The levers of the plan, for those that depend on each other."""
        # Weak: an observer must not keep objects alive.
        self.models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """The outermost modules that were called."""
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """All optimizers."""
        self.closure: Any = None
        """The closure of the `optimizer.step(closure)` in progress, else None."""
        self.gradients_elsewhere: Any = None
        """The lever that keeps gradients on the host until the step, if one does."""
        self.weights_elsewhere: Any = None
        """The lever that keeps weights there that are trained, if one does."""
        self._inside = False
        self._moving = False
        self._stepping: set[int] = set()

    @property
    def is_inside_model(self) -> bool:
        """Whether an outermost module is running."""
        return self._inside

    # ---- watching ----

    def watch(self) -> None:
        """Begin to watch."""
        self._watch_calls()
        self._watch_optimizers()
        self._watch_backward()
        self._watch_zero_grad()
        self._watch_clipping()
        self._watch_schedulers()
        self._watch_scaler()
        if self.around_loader:
            self._watch_loaders()
        if self.on_move:
            self._watch_moves()
            self._watch_generation()

    def _watch_calls(self) -> None:
        """The call itself is watched: hooks get no keyword arguments, and change what is compiled."""
        original = torch.nn.Module.__call__
        job = self

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # In a backward pass, checkpointing calls parts of a model again; these are not models.
            if job._inside or torch._C._current_graph_task_id() != -1:
                return original(module, *args, **kwargs)
            job._inside = True
            output = None
            try:
                args, kwargs = job._enter(module, args, kwargs)
                output = original(module, *args, **kwargs)
            finally:
                job._inside = False
                output = job._leave(module, output)
            return output

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self.meet(module)
        for callback in self.on_enter:
            callback(module, args, kwargs)
        for replace in self.on_arguments:
            args, kwargs = replace(module, args, kwargs) or (args, kwargs)
        return args, kwargs

    @contextlib.contextmanager
    def part(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> Iterator[list[Any]]:
        """While a part of a batch runs with its graph; it appends its output to the list."""
        before, self.graph_task = self.graph_task, torch._C._current_graph_task_id()
        output: list[Any] = []
        for callback in self.on_part_enter:
            callback(module, args, kwargs)
        try:
            yield output
        finally:
            for leave in self.on_part_leave:
                leave(module, output[0] if output else None)
            self.graph_task = before

    def meet(self, module: torch.nn.Module) -> None:
        """An outermost module is about to be used, perhaps for the first time."""
        if module not in self.models:
            self.models.add(module)
            named = names(module)
            for callback in self.on_model:
                callback(module, named)

    def _leave(self, module: torch.nn.Module, output: Any) -> Any:
        for callback in reversed(self.on_leave):
            result = callback(module, output)
            if result is not None:
                output = result
        return output

    def _watch_moves(self) -> None:
        kind, job = torch.nn.Module, self
        to, cuda = kind.to, kind.cuda

        def move(module: torch.nn.Module, device: torch.device | None) -> bool:
            """Whether the callbacks were called."""
            if device is None or device.type != "cuda" or job._moving:
                return False
            job._moving = True
            for callback in job.on_move:
                callback(module, device)
            return True

        @functools.wraps(to)
        def to_device(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            outermost = move(module, torch._C._nn._parse_to(*args, **kwargs)[0])
            try:
                return to(module, *args, **kwargs)
            finally:
                job._moving = job._moving and not outermost

        @functools.wraps(cuda)
        def to_cuda(module: torch.nn.Module, device: Any = None) -> Any:
            outermost = move(module, torch.device("cuda"))
            try:
                return cuda(module, device)
            finally:
                job._moving = job._moving and not outermost

        kind.to, kind.cuda = to_device, to_cuda  # type: ignore[method-assign]

    def _watch_generation(self) -> None:
        """Hugging Face's `generate` reads a model's types and devices before it calls the model."""
        job = self

        def watched(module: Any) -> None:
            original = module.GenerationMixin.generate

            @functools.wraps(original)
            def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(model, torch.nn.Module):
                    job.meet(model)
                return original(model, *args, **kwargs)

            module.GenerationMixin.generate = generate

        on_import("transformers.generation.utils", watched)

    def _watch_optimizers(self) -> None:
        original = optim.Optimizer.__init__
        job = self

        @functools.wraps(original)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            job.optimizers.add(optimizer)
            for callback in job.on_optimizer:
                callback(optimizer)
            job._watch_step(type(optimizer))

        optim.Optimizer.__init__ = initialize  # type: ignore[method-assign]

    def _watch_step(self, kind: type) -> None:
        original = kind.step
        if "_oomph_watched" in vars(original):
            return
        job = self

        @functools.wraps(original)
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if id(optimizer) in job._stepping:  # super().step() of a subclass
                return original(optimizer, *args, **kwargs)
            job._stepping.add(id(optimizer))
            closure = kwargs.get("closure", args[0] if args else None)
            before, job.closure = job.closure, closure
            try:
                return nested(
                    job.around_step, optimizer, lambda: original(optimizer, *args, **kwargs)
                )
            finally:
                job.closure = before
                job._stepping.discard(id(optimizer))

        step._oomph_watched = True  # type: ignore[attr-defined]
        kind.step = step

    def _watch_backward(self) -> None:
        original = torch.autograd.backward
        job = self

        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not job.on_backward:
                original(tensors, grad_tensors, *args, **kwargs)
            else:
                listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
                if not all(isinstance(tensor, torch.Tensor) for tensor in listed):
                    return original(tensors, grad_tensors, *args, **kwargs)  # gradient edges
                if grad_tensors is None or isinstance(grad_tensors, torch.Tensor):
                    gradients = [grad_tensors] * len(listed)
                else:
                    gradients = list(grad_tensors) or [None] * len(listed)
                call = Backward(listed, gradients)
                del tensors, grad_tensors, listed
                for callback in tuple(job.on_backward):  # one may leave
                    callback(call)
                original(call.tensors, call.gradients, *args, **kwargs)
            for settle in job.after_backward:
                settle()
            return None

        torch.autograd.backward = backward

    def _watch_zero_grad(self) -> None:
        for kind in (optim.Optimizer, torch.nn.Module):
            kind.zero_grad = self._around(kind.zero_grad, lambda: self.around_zero_grad)  # type: ignore[method-assign]

    def _watch_clipping(self) -> None:
        from torch.nn.utils import clip_grad

        job = self
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
            original = getattr(clip_grad, name, None)
            if original is None:
                continue

            def clip(parameters: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                one = isinstance(parameters, torch.Tensor)
                listed = Clipped([parameters] if one else parameters)
                listed.given = inspect.signature(_original).bind(listed, *args, **kwargs).arguments
                return nested(job.around_clip, listed, lambda: _original(listed, *args, **kwargs))

            clip = functools.wraps(original)(clip)
            for place in (clip_grad, torch.nn.utils):
                if hasattr(place, name):
                    setattr(place, name, clip)

    def _watch_schedulers(self) -> None:
        from torch.optim import lr_scheduler

        kinds = [lr_scheduler.LRScheduler]
        for kind in kinds:
            kinds += kind.__subclasses__()
        for kind in {*kinds, lr_scheduler.ReduceLROnPlateau}:
            if "step" in vars(kind):
                kind.step = self._around(kind.step, lambda: self.around_scheduler)

    def _watch_scaler(self) -> None:
        from torch.amp import GradScaler

        for name in ("unscale_", "step", "update"):
            original = getattr(GradScaler, name)
            setattr(
                GradScaler,
                name,
                self._around(original, lambda: self.around_scaler, (name,)),
            )

    def _around(self, original: Any, functions: Callable[[], list], first: tuple = ()) -> Any:
        @functools.wraps(original)
        def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(owner, "oomph_own", False):  # a lever's, not the script's
                return original(owner, *args, **kwargs)
            return nested(functions(), *first, owner, lambda: original(owner, *args, **kwargs))

        return method

    def _watch_loaders(self) -> None:
        """`iter(loader)`, of DataLoader and of classes derived from it (accelerate has some)."""
        job = self
        entered: list[Any] = []

        def watched(original: Any) -> Any:
            @functools.wraps(original)
            def iterate(loader: DataLoader) -> Any:
                if entered:  # a subclass calls its base, or wraps another DataLoader
                    return original(loader)
                entered.append(loader)
                try:
                    iterator = original(loader)
                    if hasattr(iterator, "gi_frame"):  # a generator: its base is called later
                        iterator = _started(iterator, entered)
                finally:
                    entered.pop()
                for function in reversed(job.around_loader):
                    iterator = function(loader, iterator)
                return iterator

            return iterate

        kinds = [DataLoader]
        for kind in kinds:
            kinds += kind.__subclasses__()
            if "__iter__" in vars(kind):
                kind.__iter__ = watched(kind.__iter__)  # type: ignore[method-assign]
        own = vars(DataLoader).get("__init_subclass__")

        def defined(cls: type, **kwargs: Any) -> None:
            # From Python 3.12 on, an inherited method is a C method without `__func__`.
            if own is not None:
                own.__func__(cls, **kwargs)
            else:
                super(DataLoader, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            if "__iter__" in vars(cls):
                cls.__iter__ = watched(cls.__iter__)  # type: ignore[attr-defined]

        def accelerated(module: Any) -> None:
            """accelerate's loaders hold a DataLoader, and ask it for one batch ahead."""
            for name in ("DataLoaderShard", "DataLoaderDispatcher"):
                kind = getattr(module, name, None)
                if kind is not None and not issubclass(kind, DataLoader):
                    kind.__iter__ = watched(kind.__iter__)

        on_import("accelerate.data_loader", accelerated)

        DataLoader.__init_subclass__ = classmethod(defined)  # type: ignore[assignment]


def _started(iterator: Any, entered: list[Any]) -> Any:
    """A generator that asks for its base's iterator only when it is first asked itself."""
    entered.append(iterator)
    try:
        first = next(iterator, _NOTHING)
    finally:
        entered.pop()
    if first is not _NOTHING:
        yield first
        yield from iterator


_NOTHING = object()


def nested(functions: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Call `functions` around the last of `arguments`, the first outermost."""
    *others, proceed = arguments
    for function in reversed(functions):
        proceed = functools.partial(function, *others, proceed)
    return proceed()


def names(root: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of `root` by the names that plans use: `Title`, `Title.path`."""
    title = type(root).__name__
    return {f"{title}.{name}" if name else title: m for name, m in root.named_modules()}
