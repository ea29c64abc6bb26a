"""The value layer's place in PyTorch's dispatcher: below autograd, above every backend."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomph import _torch_features as torch_features

KEY = "Fake"
"""The layer's dispatch key: below autograd, above every backend, and otherwise unused.

A `TorchDispatchMode` would be the usual way, but autograd takes other paths while one is active
(`isTensorSubclassLike`): it stops accumulating gradients in place, and memory changes."""

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""The key of operators that are composed of others."""


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

    __slots__ = ("func", "layer", "name", "overload", "space")
    layer: Layer

    def __init__(self, name: str, overload: str) -> None:
        (self.space, self.name), self.overload = name.split("::"), overload or "default"
        self.func: Any = None

    def __call__(self, *args, **kwargs):
        if self.func is None:
            self.func = getattr(getattr(getattr(torch.ops, self.space), self.name), self.overload)
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
    _libraries.append(everything)
    if torch_features.has("library_fallback"):
        fallback = _Fallback()
        everything.fallback(fallback, KEY)
        _entries.append(fallback)
    else:
        everything.m.fallback_fallthrough(KEY)
    # A fallback alone would fail under any TorchDispatchMode, which looks the kernel up by the
    # operator's name; so each operator gets an entry as well, those of libraries when Python first looks for them.
    _enter_when_looked_up()
    own = torch.library.Library("aten", "IMPL")
    _libraries.append(own)
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if name not in dispatched:
            continue
        if not name.startswith("aten::"):
            if not torch_features.has("library_fallback"):
                _enter(schema.name, schema.overload_name)
        elif is_view(schema) and not is_composite(name) and schema.name != "aten::lift_fresh":
            # Views move no data, and some must stay in C++: `nn.Parameter` detaches a tensor
            # and expects that Python has not seen it.
            own.impl(name, torch.library.fallthrough_kernel, KEY)
        else:
            entry = _Entry(schema.name, schema.overload_name)
            own.m.impl(name, KEY, entry, False)
            _entries.append(entry)


_layer: Layer | None = None
_entered: set[str] = set()
"""The operators beside PyTorch's own that have an entry."""


def _enter(name: str, overload: str) -> None:
    """Give an operator of a library or of the user its entry, as the fallback would serve it."""
    full = f"{name}.{overload}" if overload else name
    if full in _entered or name.startswith("aten::"):
        return
    _entered.add(full)
    entry = _Entry(name, overload)
    if _layer is not None:
        entry.layer = _layer
    library = torch.library.Library(name.split("::")[0], "IMPL")
    library.m.impl(full, KEY, entry, False)
    _libraries.append(library)
    _entries.append(entry)


def _enter_when_looked_up() -> None:
    """Operators that are not PyTorch's own get their entries when Python first looks for them; those that it knows, now."""
    look_up = torch._ops._get_packet

    def enter_all(name, overloads):
        for overload in overloads or ():
            if torch._C._dispatch_has_kernel(f"{name}.{overload}" if overload else name):
                _enter(name, overload)

    def enter(name, *rest):
        found = look_up(name, *rest)
        enter_all(name, found[1])
        return found

    torch._ops._get_packet = enter
    # `import torch` has looked for all of `prims`.
    spaces = [s for s in vars(torch.ops).values() if isinstance(s, torch._ops._OpNamespace)]
    for packet in [p for space in spaces for p in vars(space).values()]:
        if isinstance(packet, torch._ops.OpOverloadPacket):
            enter_all(packet._qualified_op_name, packet._overload_names)


def install(layer: Layer) -> None:
    """From now on the operators of this thread come to `layer`; those of others where `include` says."""
    global _layer
    register()
    _layer = layer
    for entry in _entries:
        entry.layer = layer
    include(True)
    _leave_tracing_alone()
    _pass_by_higher_order()


def _pass_by_higher_order() -> None:
    """Operators that take functions (`cond`, `flex_attention`) do not come to the layer; what they run does."""
    key = torch._C._dispatch_key_parse(KEY)
    kind = torch._ops.HigherOrderOperator
    initialize = kind.__init__

    @functools.wraps(initialize)
    def pass_by(operator: Any, *args: Any, **kwargs: Any) -> None:
        initialize(operator, *args, **kwargs)
        operator.non_fallthrough_keys = operator.non_fallthrough_keys.remove(key)

    kind.__init__ = pass_by  # type: ignore[method-assign]
    for operator in torch._ops._higher_order_ops.values():
        operator.non_fallthrough_keys = operator.non_fallthrough_keys.remove(key)


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


_let_in: set[type] = set()


def let_in(kind: type) -> None:
    """Have the operators come to the layer that a tensor's class or a mode of `kind` calls, for those that it is asked for.

    PyTorch hands it those below the layer.
    """
    if kind in _let_in:
        return
    _let_in.add(kind)
    owner = next(c for c in kind.__mro__ if "__torch_dispatch__" in vars(c))
    entry = vars(owner)["__torch_dispatch__"]
    function = getattr(entry, "__func__", entry)
    if owner in _let_in and owner is not kind:
        return
    _let_in.add(owner)
    included = torch._C._dispatch_tls_is_dispatch_key_included
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

    @functools.wraps(function)
    def included_again(*args: Any, **kwargs: Any) -> Any:
        if not included(KEY) or not excluded(KEY):
            return function(*args, **kwargs)
        with parts_included():
            return function(*args, **kwargs)

    wrap = type(entry) if isinstance(entry, (classmethod, staticmethod)) else lambda f: f
    owner.__torch_dispatch__ = wrap(included_again)  # type: ignore[attr-defined]


class Local(TorchDispatchMode):
    """Has the operators on the parts of distributed tensors come to the layer, which PyTorch itself calls, not Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "_op_dispatcher") for kind in types):
            return NotImplemented
        if not torch._C._dispatch_tls_is_dispatch_key_included(KEY):
            return func(*args, **(kwargs or {}))
        with parts_included():
            return func(*args, **(kwargs or {}))


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
