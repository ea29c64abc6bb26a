"""The value layer's place in PyTorch's dispatcher: below autograd, above every backend."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch

KEY = "Fake"
"""The layer's dispatch key: below autograd, above every backend, and otherwise unused.

A `TorchDispatchMode` would be the usual way, but autograd takes other paths while one is active
(`isTensorSubclassLike`): it stops accumulating gradients in place, and memory changes."""

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""The key of operators that are composed of others."""

_aten = torch.ops.aten


class Layer(Protocol):
    """What is called for every operator."""

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run `func`."""


class _Fallback:
    """The kernel of all operators that have no entry: of libraries, of the user."""

    layer: Layer

    def __call__(self, func, *args, **kwargs):
        return self.layer.call(func, *args, **kwargs)


class _Entry:
    """The kernel of one operator: knows its name until it is first called."""

    __slots__ = ("func", "layer", "name", "overload")
    layer: Layer

    def __init__(self, name: str, overload: str) -> None:
        self.name, self.overload = name.removeprefix("aten::"), overload or "default"
        self.func: Any = None

    def __call__(self, *args, **kwargs):
        if self.func is None:
            self.func = getattr(getattr(_aten, self.name), self.overload)
        return self.layer.call(self.func, *args, **kwargs)


_libraries: list[Any] = []
_entries: list[_Fallback | _Entry] = []


def register() -> None:
    """Enter the layer into PyTorch's dispatcher, once; nothing comes there before it is installed.

    This changes the tables of all operators, 55 MiB, which forked processes can share.
    """
    if _entries:
        return
    everything = torch.library.Library("_", "IMPL")
    fallback = _Fallback()
    everything.fallback(fallback, KEY)
    _entries.append(fallback)
    # A fallback alone would fail under any TorchDispatchMode, which looks the kernel up by the
    # operator's name; so each operator of PyTorch's own gets an entry as well.
    own = torch.library.Library("aten", "IMPL")
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if not name.startswith("aten::") or name not in dispatched:
            continue
        composite = is_composite(name)
        if is_view(schema) and not composite and schema.name != "aten::lift_fresh":
            # Views move no data, and some must stay in C++: `nn.Parameter` detaches a tensor
            # and expects that Python has not seen it.
            own.impl(name, torch.library.fallthrough_kernel, KEY)
        else:
            entry = _Entry(schema.name, schema.overload_name)
            own.m.impl(name, KEY, entry, False)
            _entries.append(entry)
    _libraries.extend((everything, own))


def install(layer: Layer) -> None:
    """From now on the operators of this thread come to `layer`; those of others where `include` says."""
    register()
    for entry in _entries:
        entry.layer = layer
    include(True)
    _leave_tracing_alone()


def include(included: bool) -> None:
    """Whether the operators of the thread that calls come to the layer."""
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, included)


@contextlib.contextmanager
def parts_included() -> Any:
    """Inside an operator, whose parts do not come to the layer: here they do."""
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
    exclude(KEY, False)
    try:
        yield
    finally:
        exclude(KEY, True)


def is_composite(name: str) -> bool:
    """Whether a real run decomposes an operator: it consists of others, and CUDA has no kernel.

    Queried in C++, because Python has more decompositions, which real runs do not use.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, COMPOSITE.name) and not has_kernel(name, "CUDA")


def is_view(schema: Any) -> bool:
    """Whether an operator's result is a view of its argument."""
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not written and any(r.alias_info is not None for r in schema.returns)


def _leave_tracing_alone() -> None:
    """Disable the layer while torch.compile traces: there are no values to compute."""
    from torch._dispatch import python as dispatch_python
    from torch._subclasses.fake_tensor import FakeTensorMode

    included = torch._C._dispatch_tls_is_dispatch_key_included
    include = torch._C._dispatch_tls_set_dispatch_key_included
    enter, leave = FakeTensorMode.__enter__, FakeTensorMode.__exit__

    def quiet_enter(mode):
        mode.__dict__.setdefault("_oomph_outer", []).append(included(KEY))
        include(KEY, False)
        return enter(mode)

    def quiet_leave(mode, *exception):
        try:
            return leave(mode, *exception)
        finally:
            include(KEY, mode.__dict__["_oomph_outer"].pop())

    FakeTensorMode.__enter__, FakeTensorMode.__exit__ = quiet_enter, quiet_leave

    python_dispatcher = dispatch_python.enable_python_dispatcher

    @contextlib.contextmanager
    def quiet_dispatcher():
        outer = included(KEY)
        include(KEY, False)
        try:
            with python_dispatcher():
                yield
        finally:
            include(KEY, outer)

    dispatch_python.enable_python_dispatcher = quiet_dispatcher
