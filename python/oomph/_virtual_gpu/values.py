"""Values that programs read are real: small and integral tensors are computed on the CPU.

The kernels of a virtual GPU do nothing, but programs choose their path by values: masks that are
all true, counts, lengths, indices, flags. `ValueMode` runs every operator as it is, on the virtual
GPU, for its memory; then, where the result is small or integral, runs it again on the CPU over the
very bytes that stand for device memory.

What nobody computed (large floats and what follows from them) reads as zeros. A value that follows
from such floats but steers the program (a comparison, an index, a count) is filled by a rule that
the user chooses, and each such read is reported with the script's line.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections import Counter
from typing import Any

import torch

from oomph._virtual_gpu.library import library

FLOAT_LIMIT = 1 << 18
"""Elements of the largest floating tensor that is computed: what programs decide by is small."""

WIDE_LIMIT = 1 << 22
"""Elements of the largest floating tensor that is computed where it follows from known values only:
boxes, anchors, time tables. It is never filled or drawn, so that weights cost no memory."""

PRODUCT_LIMIT = 1 << 28
"""Multiplications of the largest matrix product or convolution that is computed: some 10 ms of a
CPU. Programs do not decide by what is longer, and it would take longer than the whole run."""

INTEGRAL_BYTES = 64 << 20
"""Bytes of the largest integral tensor that is computed: a mask of 8192 x 8192 booleans."""

RULES = ("half", "all", "none")
"""How many elements of an unknown comparison are taken to be true."""

KEY = "Fake"
"""The dispatch key that the layer sits at: below autograd, above every backend, and used by nobody.

A `TorchDispatchMode` would be the usual way, but autograd takes other paths while one is active
(`isTensorSubclassLike`): it stops accumulating gradients in place, and memory changes."""

_CPU = torch.device("cpu")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_aten = torch.ops.aten
_disabled_dispatch = torch._C._disabled_torch_dispatch_impl
_make_storage = torch._C._construct_storage_from_data_pointer


def base_pointer(t: torch.Tensor) -> int:
    """Where the memory of `t` and its views begins.

    Not asked of `untyped_storage()`: the Python object for a storage counts as one more owner, and
    autograd accumulates in place only into what nobody else owns.
    """
    return t.data_ptr() - int(t.storage_offset()) * t.element_size()


def cpu_alias(t: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes that stand for the device memory of `t`: same shape and strides."""
    if t.numel() == 0:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    aliased = _make_storage(t.data_ptr(), _CPU, (last + 1) * t.element_size())
    return torch.empty(0, dtype=t.dtype).set_(aliased, 0, t.shape, t.stride())


class Assumptions:
    """What the run rests on without having computed it: counted by what, and where first."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def add(self, kind: str, what: str, where: str) -> None:
        """Count one more assumption `what` of `kind` at `where` (file:line)."""
        self._counts[kind, what, where] += 1

    def as_list(self) -> list[dict[str, Any]]:
        """All assumptions: `kind`, `what`, `location` (file:line or ""), `count`."""
        return [
            dict(kind=kind, what=what, location=where, count=count)
            for (kind, what, where), count in self._counts.items()
        ]


_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OWN_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = os.path.dirname(os.__file__) + os.sep


def is_user_file(name: str) -> bool:
    """Whether a source file is the user's own: no library's, not Python's, not oomph's."""
    return not (
        name.startswith((_OWN_DIRECTORY, _STDLIB, "<"))
        or any(part in name for part in _LIBRARY_PARTS)
    )


def user_line() -> str:
    """`file:line` of the innermost frame that is the user's own code, or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_composite(name: str) -> bool:
    """Whether a real run takes an operator apart: it is composed of others, and CUDA has no kernel.

    Asked of C++: Python knows more decompositions, which real runs do not take.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, _COMPOSITE.name) and not has_kernel(name, "CUDA")


class _Fallback:
    """The kernel of all operators that have no entry: of libraries, of the user."""

    layer: ValueLayer

    def __call__(self, func, *args, **kwargs):
        return self.layer._call(func, *args, **kwargs)


class _Entry:
    """The kernel of one operator: knows its name until it is first called."""

    __slots__ = ("func", "layer", "name", "overload")
    layer: ValueLayer

    def __init__(self, name: str, overload: str) -> None:
        self.name, self.overload = name.removeprefix("aten::"), overload or "default"
        self.func: Any = None

    def __call__(self, *args, **kwargs):
        if self.func is None:
            self.func = getattr(getattr(_aten, self.name), self.overload)
        return self.layer._call(self.func, *args, **kwargs)


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
        composite = _is_composite(name)
        if _is_view(schema) and not composite and schema.name != "aten::lift_fresh":
            # Views move no data, and some must stay in C++: `nn.Parameter` detaches a tensor
            # and expects that Python has not seen it.
            own.impl(name, torch.library.fallthrough_kernel, KEY)
        else:
            entry = _Entry(schema.name, schema.overload_name)
            own.m.impl(name, KEY, entry, False)
            _entries.append(entry)
    _libraries.extend((everything, own))


def _is_view(schema: Any) -> bool:
    """Whether an operator's result is another description of its argument's bytes."""
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not written and any(r.alias_info is not None for r in schema.returns)


class _Op:
    """What is known of one operator, worked out once."""

    __slots__ = ("composite", "fill", "mutated", "name", "random", "reads", "special", "view")

    def __init__(self, func: Any, layer: ValueLayer) -> None:
        schema = func._schema
        self.name = schema.name
        writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        self.mutated = [
            (index, argument.name, argument.kwarg_only)
            for index, (argument, written) in enumerate(zip(schema.arguments, writes, strict=True))
            if written
        ]
        self.view = self.name in _NO_DATA or _is_view(schema)
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.reads = self.name in _READS
        self.special = layer.specials.get(self.name)
        if self.name.startswith(_COLLECTIVES):
            self.special = layer._collective
        self.composite = _is_composite(func.name())
        self.fill = _FILLS.get(self.name.rsplit("::")[-1].rstrip("_"))


# Their result has no contents yet, or is only another description of the same bytes.
_NO_DATA = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::detach",
    "aten::alias",
    "aten::resize_",
    "aten::set_",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_has_compatible_shallow_copy_type",
}
_COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
# Operators by which values leave the device.
_READS = {"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_", "aten::equal"}

# Matrix products and convolutions, and which argument says how long each of their sums is.
_PRODUCTS = {
    "aten::mm": 1, "aten::bmm": 1, "aten::addmm": 2, "aten::baddbmm": 2, "aten::_addmm_activation": 2,
    "aten::convolution": 1, "aten::convolution_backward": 2,
}  # fmt: skip

# How an integral result that follows from unknown floats is filled.
_ROUND_ROBIN, _PERMUTATION, _COMPARISON = "round robin", "permutation", "comparison"
_FILLS = {
    **dict.fromkeys(
        ("argmax", "argmin", "topk", "max", "min", "multinomial", "mode", "median"), _ROUND_ROBIN
    ),
    **dict.fromkeys(("sort", "argsort", "kthvalue", "randperm"), _PERMUTATION),
    **dict.fromkeys(
        ("gt", "ge", "lt", "le", "eq", "ne", "bernoulli", "logical_not", "isnan", "isinf"),
        _COMPARISON,
    ),
}


def _tensors(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _tensors(item, found)
    return found


def _leave_tracing_alone() -> None:
    """Take the layer out of the way while torch.compile traces: there are no values to compute."""
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


class ValueLayer:
    """Computes small and integral tensors for real, forward and backward, in every thread it reaches.

    `unknown` says how comparisons of unknown values resolve, one of `RULES`; `assumptions` collects what had to be assumed.
    """

    def __init__(
        self, assumptions: Assumptions, unknown: str = "half", virtual: bool = True
    ) -> None:
        """On a real GPU (`virtual` false) operators are only announced to `before`.

        Raise `ValueError` for another rule, `RuntimeError` if no virtual GPU is loaded.
        """
        if unknown not in RULES:
            raise ValueError(f"unknown must be one of {', '.join(RULES)}, not {unknown!r}")
        self.assumptions = assumptions
        self.unknown = unknown
        # Called with each operator's name before it runs; may give a function to call it through.
        self.before: Any = None
        self._leave_unwritten: Any = None
        self._gone = False
        self._virtual = virtual
        self._gpu = library() if virtual else None
        self._keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(KEY))
        self._unknown_storages: dict[
            int, bool
        ] = {}  # storages of small tensors that nobody computed
        self._wide: set[int] = set()  # storages of wide floats that were computed
        # A CPU multiplies integers one by one.
        self._refused: set[Any] = {_aten._int_mm.default}
        # Results of collectives that run when their group ends: address, and where the memory begins.
        self._awaited: dict[int, int] = {}
        self._plain_types: dict[type, bool] = {}
        self.specials = {
            "aten::nonzero": self._nonzero,
            "aten::masked_select": self._masked_select,
            "aten::masked_scatter_backward": self._masked_scatter_backward,
            "aten::_unique2": self._sized_on_cpu,
            "aten::unique_dim": self._sized_on_cpu,
            "aten::unique_consecutive": self._sized_on_cpu,
            "aten::bincount": self._sized_on_cpu,
            "torchvision::nms": self._sized_on_cpu,
            "aten::repeat_interleave": self._repeat_interleave,
            "aten::index": self._index,
            "aten::index_put": self._index,
            "aten::index_put_": self._index,
            "aten::_index_put_impl_": self._index,
            "aten::_local_scalar_dense": self._item,
            "aten::lift_fresh": self._fresh,
            "aten::equal": self._equal,
            "aten::allclose": self._equal,
        }
        self._ops: dict[Any, _Op] = {}

    def install(self) -> None:
        """Watch this thread, the threads that Python starts from now on, and autograd's."""
        register()
        for entry in _entries:
            entry.layer = self
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)
        _leave_tracing_alone()
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            torch._C._dispatch_tls_set_dispatch_key_included(KEY, not self._gone)
            original(thread)

        threading.Thread.run = run  # type: ignore[method-assign]
        self._watch_compiled_code()

    def _watch_compiled_code(self) -> None:
        """Give the buffers of compiled code a stated content, zero, instead of stale bytes.

        That code takes its buffers past the dispatcher, and its kernels do nothing.
        """
        try:
            from torch._C._dynamo import guards

            allocate = guards._empty_strided_cuda
        except (ImportError, AttributeError):
            return

        def empty_strided_cuda(size, stride, dtype):
            out = allocate(size, stride, dtype)
            if self._computable(out):
                storage = out.untyped_storage()
                self._gpu.oomph_vgpu_clear(storage.data_ptr(), storage.nbytes())
                self._unknown_storages[storage.data_ptr()] = True
            return out

        guards._empty_strided_cuda = empty_strided_cuda

    def leave_host_unwritten(self) -> None:
        """From now on large tensors of the CPU keep no contents: see `oomph._ranks.rehearsal`."""
        from oomph._ranks.rehearsal import leave_unwritten

        self._leave_unwritten = leave_unwritten
        self.assumptions.add(
            "value", "large tensors on the CPU are not written; their contents are unknown", ""
        )

    def leave(self) -> None:
        """Step aside in a process forked off, where CUDA cannot be used: DataLoader's workers."""
        self._gone = True
        self.before = None
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)

    def _call(self, func, *args, **kwargs):
        """Every operator comes here."""
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = _Op(func, self)
        if op.composite:
            return func._op_dk(_COMPOSITE, *args, **kwargs)  # its parts come here one by one
        if self.before is not None:
            within = self.before(op.name)
            if within is not None:
                return within(self._enter, func, op, args, kwargs)
        return self._enter(func, op, args, kwargs)

    def _enter(self, func, op, args, kwargs):
        """Run an operator below this layer."""
        with torch._C._ExcludeDispatchKeyGuard(self._keys):
            if not self._virtual:
                return func(*args, **kwargs)
            for t in _tensors(args, []):
                kind = type(t)
                plain = self._plain_types.get(kind)
                if plain is None:
                    own = getattr(kind, "__torch_dispatch__", None)
                    plain = own is torch.Tensor.__torch_dispatch__ or own is _disabled_dispatch
                    self._plain_types[kind] = plain
                if not plain:
                    return func(*args, **kwargs)  # a wrapper: the tensors inside come here
            if self._awaited:
                self._collect()
            if self._leave_unwritten is not None:
                unwritten = self._leave_unwritten(op.name, args)
                if unwritten is not NotImplemented:
                    return unwritten
            if op.special is not None:
                return op.special(func, op, args, kwargs)
            return self._run(func, op, args, kwargs)

    # ---- collectives ----

    def _collective(self, func, op, args, kwargs):
        """An operator of `torch.distributed`: the virtual NCCL passes values between ranks.

        It is told whether this rank's are known, and says whether the result's are.
        """
        functional = op.name.startswith("_c10d_functional")
        if functional and op.name.endswith("wait_tensor"):
            return func(*args, **kwargs)
        first = _tensors(args[:1], [])
        second = _tensors(args[1:2], [])
        given = [t for t in (first if functional else second or first) if t.is_cuda]
        self._gpu.oomph_vgpu_offer(not any(self.is_unknown(t) for t in given))
        try:
            out = func(*args, **kwargs)
        finally:
            taken = self._gpu.oomph_vgpu_taken()
        if op.name.endswith("::send"):
            return out
        outs = [t for t in (_tensors(out, []) if functional else first) if t.is_cuda]
        if taken == 0:
            # Nothing came: too large to be carried, or the group that it belongs to has not ended.
            for t in outs:
                if self._computable(t):
                    self._awaited[t.data_ptr()] = base_pointer(t)
            self._mark(outs)
        elif taken == 1:
            self._know(outs, overwritten=True)
        else:
            self._mark(outs)
        return out

    def _collect(self) -> None:
        """Learn what grouped collectives have brought since."""
        address = ctypes.c_uint64()
        while (known := self._gpu.oomph_vgpu_arrival(ctypes.byref(address))) >= 0:
            pointer = self._awaited.pop(address.value, None)
            if known and pointer is not None:
                self._unknown_storages.pop(pointer, None)

    # ---- running ----

    def _run(self, func, op, args, kwargs):
        if op.view:
            return func(*args, **kwargs)
        if op.reads:
            out = func(*args, **kwargs)
        else:
            self._gpu.oomph_vgpu_begin()
            try:
                out = func(*args, **kwargs)
            finally:
                unanswered = self._gpu.oomph_vgpu_end()
            if unanswered and op.name not in _CHECKS:
                self.assumptions.add(
                    "value",
                    f"{op.name} read a value back from the device; zero was given",
                    user_line(),
                )
        self._settle(func, op, args, kwargs, out)
        self._note_scaler(op)
        return out

    def _note_scaler(self, op) -> None:
        if op.name == "aten::_amp_foreach_non_finite_check_and_unscale_":
            self.assumptions.add(
                "value",
                "gradients are taken to be finite: the gradient scaler skips no step",
                user_line(),
            )

    def _settle(self, func, op, args, kwargs, out) -> None:
        """Give `out`, and what `func` changed in place, their values."""
        if op.mutated:
            outs: list[torch.Tensor] = []
            for index, name, kwarg_only in op.mutated:
                _tensors(
                    kwargs.get(name) if kwarg_only or index >= len(args) else args[index], outs
                )
        else:
            outs = [out] if isinstance(out, torch.Tensor) else _tensors(out, [])
        worth = False
        for t in outs[:1] if op.name == _DROPOUT else outs:
            if t.is_cuda:
                if self._computable(t) or (
                    t.numel() <= WIDE_LIMIT and not op.random and op.name not in _CONSTANTS
                ):
                    worth = True
                elif self._wide:
                    self._wide.discard(base_pointer(t))
            elif op.reads and t.device.type == "cpu":
                self._leaves_device(op, args)
        if not worth:
            self._mark(outs)
            return
        inputs = _tensors(args, [])
        if kwargs:
            _tensors(list(kwargs.values()), inputs)
        all_computable, inherits = True, False
        written = {id(t) for t in outs} if op.name in _OVERWRITES else ()
        for t in inputs:
            if t.is_cuda and id(t) not in written:
                if not self._computable(t):
                    if not self._wide or base_pointer(t) not in self._wide:
                        all_computable = False
                        break
                elif self._unknown_storages and base_pointer(t) in self._unknown_storages:
                    if t.is_floating_point():
                        all_computable = False
                        break
                    inherits = True
        if all_computable:
            for t in outs:
                if (
                    t.is_cuda
                    and not self._computable(t)
                    and (t.numel() > WIDE_LIMIT or inherits or not inputs)
                ):
                    all_computable = False
        if (
            all_computable
            and func not in self._refused
            and _multiplications(op, args, outs) <= PRODUCT_LIMIT
            and self._compute(func, op, args, kwargs, out)
        ):
            if inherits:
                self._mark(outs)
            else:
                self._know(outs, overwritten=not op.mutated or op.name in _OVERWRITES)
            return
        self._fill(op, args, outs)
        self._mark(outs)

    def _know(self, outs, overwritten: bool) -> None:
        """The contents of `outs` are real now; of all of it, where they were overwritten."""
        for t in outs:
            if not t.is_cuda:
                continue
            pointer = base_pointer(t)
            if not self._computable(t):
                self._wide.add(pointer)
            if overwritten:
                self._unknown_storages.pop(pointer, None)

    def _computable(self, t: torch.Tensor) -> bool:
        if t.is_floating_point() or t.is_complex():
            return t.numel() <= FLOAT_LIMIT
        return t.numel() * t.element_size() <= INTEGRAL_BYTES

    def _compute(self, func, op, args, kwargs, out) -> bool:
        """Run `func` on the CPU over the bytes of device memory; False if it cannot."""
        try:
            cpu_args = self._to_cpu(args)
            if op.name in _PRODUCTS:
                cpu_args = tuple(map(_widened, cpu_args))
            cpu_kwargs = {name: self._to_cpu(value) for name, value in kwargs.items()}
            if op.random:
                given = (*args, *kwargs.values())
                result = self._run_random(func, cpu_args, cpu_kwargs, given, out)
            else:
                result = func(*cpu_args, **cpu_kwargs)
            if not op.mutated:
                for to, value in zip(_tensors(out, []), _tensors(result, []), strict=False):
                    if to.is_cuda:
                        if to.shape != value.shape:
                            return False
                        cpu_alias(to).copy_(value)
            return True
        except NotImplementedError:
            self._refused.add(func)  # no such operator on the CPU
            return False
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False  # not for these types or values: what it gives stays unknown

    def _to_cpu(self, value):
        if isinstance(value, torch.Tensor):
            return cpu_alias(value) if value.is_cuda else value
        if isinstance(value, torch.device):
            return _CPU if value.type == "cuda" else value
        if isinstance(value, torch.Generator):
            return None  # the CPU draws by its own generator, seeded by `_run_random`
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self._to_cpu(item) for item in value)
                if type(value) in (list, tuple)
                else value
            )
        return value

    def _run_random(self, func, cpu_args, cpu_kwargs, given, out):
        """Draw what follows from the device's random state: a program that goes back to an earlier
        state draws the same again. The script's CPU random state stays as it would be."""
        generator = next((g for g in given if isinstance(g, torch.Generator)), None)
        if generator is None:
            device = next((t.device.index for t in _tensors(out, []) if t.is_cuda), 0)
            generator = torch.cuda.default_generators[device]
        offset = generator.get_offset() if generator.device.type == "cuda" else 0
        seed = hash((generator.initial_seed(), offset)) & 0x7FFF_FFFF_FFFF_FFFF
        saved = torch.get_rng_state()
        # Not `torch.manual_seed`, which seeds the GPUs, too.
        torch.default_generator.manual_seed(seed)
        try:
            return func(*cpu_args, **cpu_kwargs)
        finally:
            torch.set_rng_state(saved)

    # ---- unknown values ----

    def _mark(self, outs) -> None:
        # Large tensors too: a small part of one is no more known than the whole.
        for t in outs:
            if t.is_cuda:
                pointer = base_pointer(t)
                self._unknown_storages[pointer] = True
                if not self._computable(t):
                    self._wide.discard(pointer)

    def is_unknown(self, t: torch.Tensor) -> bool:
        """Whether the contents of `t` were never computed, or follow from such contents."""
        if not t.is_cuda:
            return False
        pointer = base_pointer(t)
        return (
            pointer in self._unknown_storages if self._computable(t) else pointer not in self._wide
        )

    def _fill(self, op, args, outs) -> None:
        """Give results that could not be computed a stated content instead of stale bytes."""
        for t in outs:
            if not t.is_cuda or t.numel() == 0 or not self._computable(t):
                continue
            alias = cpu_alias(t)
            if t.is_floating_point() or t.is_complex():
                alias.zero_()
            elif op.fill == _ROUND_ROBIN and t.dtype == torch.int64:
                _fill_round_robin(alias, op, args)
            elif op.fill == _PERMUTATION and t.dtype == torch.int64:
                dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
                if alias.dim():
                    order = torch.arange(alias.shape[dim])
                    alias.copy_(
                        order.view(
                            [-1 if d == dim % alias.dim() else 1 for d in range(alias.dim())]
                        )
                    )
                else:
                    alias.zero_()
            elif t.dtype == torch.bool and op.fill == _COMPARISON:
                self._fill_comparison(alias, op, args)
            elif op.mutated and op.name not in _OVERWRITES:
                continue  # keeps what was known before
            else:
                alias.zero_()

    def _fill_comparison(self, alias, op, args) -> None:
        name = op.name.rsplit("::")[-1].rstrip("_")
        same = len(args) > 1 and args[0] is args[1]
        # Unknown floats are taken to be finite: x == x holds, and nothing equals infinity.
        if name in ("isnan", "isinf") or (same and name in ("ne", "lt", "gt")):
            alias.fill_(False)
        elif same:
            alias.fill_(True)
        elif name in ("eq", "ne"):
            alias.fill_(name == "ne")
        elif name in ("ge", "le") and _parts_of_one(args):
            # Corners of one tensor of boxes, neighbours of one series: checks that programs make.
            alias.fill_(True)
        elif self.unknown == "half":
            if alias.numel() == 1:
                alias.fill_(False)
            else:
                every = torch.arange(alias.numel()) % 2 == 0
                alias.copy_(every.view(alias.shape))
        else:
            alias.fill_(self.unknown == "all")

    def _leaves_device(self, op, args) -> None:
        source = args[1] if op.name == "aten::copy_" else args[0]
        if isinstance(source, torch.Tensor) and self.is_unknown(source):
            self.assumptions.add(
                "value", "a tensor that nobody computed was copied to the CPU", user_line()
            )

    # ---- operators that need help ----

    def _item(self, func, op, args, kwargs):
        if not isinstance(args[0], torch.Tensor):
            return args[0]  # of a Python number's tensor, which graphs save, the number comes here
        if self.is_unknown(args[0]):
            floating = args[0].is_floating_point() or args[0].is_complex()
            kind = "zero" if floating else f"a value by the rule {self.unknown!r}"
            self.assumptions.add(
                "value", f"a value that nobody computed was read as {kind}", user_line()
            )
            if floating:
                func(*args, **kwargs)
                return 0j if args[0].is_complex() else 0.0
        return func(*args, **kwargs)

    def _fresh(self, func, op, args, kwargs):
        """`torch.tensor(…, device="cuda")` copies its values without passing here."""
        t = args[0]
        if t.is_cuda and self._unknown_storages:
            self._unknown_storages.pop(base_pointer(t), None)
        return t

    def _equal(self, func, op, args, kwargs):
        a, b = args[:2]
        if self.is_unknown(a) or self.is_unknown(b):
            self.assumptions.add("value", "unknown tensors were taken to be equal", user_line())
            return op.name == "aten::allclose" or a.shape == b.shape
        return func(*self._to_cpu(list(args)), **kwargs)

    def _known_mask(self, mask: torch.Tensor) -> torch.Tensor | None:
        """The CPU view of a mask whose bytes mean something, or None."""
        if not mask.is_cuda:
            return mask
        if mask.is_floating_point() and self.is_unknown(mask):
            return None
        if not mask.is_floating_point() and not self._computable(mask):
            return None
        return cpu_alias(mask)

    def _count(self, mask: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """How many elements are not zero, and their positions where they are known."""
        if mask.is_cuda and self.is_unknown(mask):
            self.assumptions.add(
                "shape", f"a size follows from unknown values: rule {self.unknown!r}", user_line()
            )
        known = self._known_mask(mask)
        if known is None:
            return int(mask.numel() * self._share()), None
        positions = known.nonzero()
        return positions.shape[0], positions

    def _share(self) -> float:
        return {"half": 0.5, "all": 1.0, "none": 0.0}[self.unknown]

    def _nonzero(self, func, op, args, kwargs):
        mask = args[0]
        if not mask.is_cuda:
            return func(*args, **kwargs)
        count, positions = self._count(mask)
        # The operator counts on the device and reads the count; with the answer it goes on as ever.
        self._gpu.oomph_vgpu_begin()
        self._gpu.oomph_vgpu_answer(count)
        try:
            out = func(*args, **kwargs)
        finally:
            self._gpu.oomph_vgpu_end()
        if out.shape[0] != count:
            # Larger inputs are counted in parts, each read by itself.
            out = torch.empty((mask.dim(), count), dtype=torch.int64, device=mask.device).t()
        if self._computable(out):
            if positions is None:
                positions = _spread(mask.shape, count)
            cpu_alias(out).copy_(positions)
            if self.is_unknown(mask):
                self._mark([out])
            else:
                self._unknown_storages.pop(base_pointer(out), None)
        return out

    def _index(self, func, op, args, kwargs):
        """Indexing by a mask: the mask becomes positions first, as the operator does inside."""
        indices = args[1]
        masks = [
            i
            for i in indices
            if i is not None and i.dtype in (torch.bool, torch.uint8) and i.is_cuda
        ]
        if not masks or (
            op.name != "aten::index" and args[2].numel() == 1 and len(masks) == len(indices)
        ):
            return self._run(func, op, args, kwargs)
        expanded: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                positions = self._part(_aten.nonzero.default, index)
                expanded += [positions.select(1, axis) for axis in range(index.dim())]
            else:
                expanded.append(index)
        return self._run(func, op, (args[0], expanded, *args[2:]), kwargs)

    def _part(self, func, *args, **kwargs):
        """Run an operator that another one runs inside."""
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = _Op(func, self)
        if op.special is not None:
            return op.special(func, op, args, kwargs)
        return self._run(func, op, args, kwargs)

    def _masked_select(self, func, op, args, kwargs):
        values, mask = args[:2]
        if not (values.is_cuda and mask.is_cuda) or func is not _aten.masked_select.default:
            return self._run(func, op, args, kwargs)
        values, mask = torch.broadcast_tensors(values, mask)
        if mask.dim() == 0:
            values, mask = values[None], mask[None]
        return self._part(_aten.index.Tensor, values, [mask])

    def _masked_scatter_backward(self, func, op, args, kwargs):
        """What the mask chose, filled up with zeros, as the operator does inside."""
        grad, mask, sizes = args[:3]
        if not grad.is_cuda:
            return self._run(func, op, args, kwargs)
        chosen = self._part(_aten.masked_select.default, grad, mask)
        missing = torch.Size(sizes).numel() - chosen.numel()
        if missing > 0:
            zeros = self._part(_aten.zeros.default, [missing], dtype=grad.dtype, device=grad.device)
            chosen = self._part(_aten.cat.default, [chosen, zeros])
        return chosen[: torch.Size(sizes).numel()].view(sizes)

    def _sized_on_cpu(self, func, op, args, kwargs):
        """Operators whose result's size follows from values: sized by the CPU's own result."""
        inputs = [t for t in _tensors(args, []) if t.is_cuda]
        if not inputs:
            return func(*args, **kwargs)
        unknown = [t for t in inputs if self.is_unknown(t)]
        if unknown:
            self.assumptions.add(
                "shape",
                f"the size of {op.name} follows from unknown values: rule {self.unknown!r}",
                user_line(),
            )
        if all(self._computable(t) and not t.is_floating_point() for t in unknown):
            result = func(
                *self._to_cpu(list(args)), **{k: self._to_cpu(v) for k, v in kwargs.items()}
            )
        else:
            result = _sized_by_rule(func, op, args, kwargs, self._share())

        def place(value):
            if isinstance(value, torch.Tensor):
                placed = torch.empty_like(value, device=inputs[0].device)
                if self._computable(placed):
                    cpu_alias(placed).copy_(value)
                    self._unknown_storages.pop(base_pointer(placed), None)
                    if unknown:
                        self._mark([placed])
                return placed
            return type(value)(place(item) for item in value)

        return place(result)

    def _repeat_interleave(self, func, op, args, kwargs):
        if (
            not args
            or not isinstance(args[0], torch.Tensor)
            or not args[0].is_cuda
            or func is not _aten.repeat_interleave.Tensor
        ):
            return self._run(func, op, args, kwargs)
        if kwargs.get("output_size") is None:
            if self.is_unknown(args[0]):
                self.assumptions.add("shape", "repeat_interleave by unknown counts", user_line())
            kwargs = dict(kwargs, output_size=int(cpu_alias(args[0]).sum()))
        return self._run(func, op, args, kwargs)


# They only fill memory: nothing follows from it that its unknown contents would not give.
_CONSTANTS = {
    "aten::zeros", "aten::ones", "aten::full", "aten::zeros_like", "aten::ones_like", "aten::full_like",
    "aten::zero_", "aten::fill_", "aten::new_zeros", "aten::new_ones", "aten::new_full",
}  # fmt: skip
# They write all of what they change, whatever it was before.
_OVERWRITES = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_",
    "aten::bernoulli_", "aten::exponential_", "aten::set_", "aten::_foreach_copy_", "aten::_foreach_zero_",
}  # fmt: skip
_DROPOUT = "aten::native_dropout"
"""Its mask is for its backward pass alone: where the result is too large to be computed, it is not written
either, which would take the time and the memory of one byte for each element."""

# What they read back is a status, and zero means success.
_CHECKS = {
    "aten::linalg_inv_ex", "aten::linalg_cholesky_ex", "aten::_linalg_solve_ex", "aten::linalg_lu_factor_ex",
    "aten::_linalg_det", "aten::_linalg_slogdet", "aten::_linalg_svd", "aten::_linalg_eigh", "aten::linalg_qr",
}  # fmt: skip


def _multiplications(op: _Op, args: tuple, outs: list[torch.Tensor]) -> int:
    """How many numbers an operator multiplies, if it is a product."""
    position = _PRODUCTS.get(op.name)
    if position is None:
        return 0
    if "convolution" in op.name:
        backward = op.name == "aten::convolution_backward"
        of, each = args[0] if backward else outs[0], args[position][:1].numel()
        return of.numel() * each * (2 if backward else 1)
    return outs[0].numel() * args[position].shape[-2]


def _widened(value):
    """Half precision as single: a CPU without instructions for it multiplies hundreds of times slower."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


def _parts_of_one(args: tuple) -> bool:
    """Whether two tensors are views of the same memory."""
    if len(args) < 2 or not all(isinstance(t, torch.Tensor) for t in args[:2]):
        return False
    a, b = args[:2]
    return a.is_cuda and b.is_cuda and base_pointer(a) == base_pointer(b)


def _sized_by_rule(func, op, args: tuple, kwargs: dict, share: float):
    """On the CPU, what `func` gives if it keeps a `share` of what it is given."""
    given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    source = args[0]
    if op.name == "torchvision::nms":
        return _spread(source.shape[:1], int(source.shape[0] * share))[:, 0]
    if op.name == "aten::bincount":
        return torch.zeros(max(1, given.get("minlength", 0)), dtype=torch.int64)
    dim = given.get("dim")
    if dim is None:
        total, inverse = source.numel(), source.shape
        shape = torch.Size([int(total * share)])
    else:
        total, inverse = source.shape[dim], torch.Size([source.shape[dim]])
        shape = torch.Size(
            [int(n * share) if at == dim % source.dim() else n for at, n in enumerate(source.shape)]
        )
    # As evenly as can be: what is kept appears equally often.
    kept = max(1, int(total * share))
    counted, numbered = given.get("return_counts"), given.get("return_inverse")
    return (
        torch.zeros(shape, dtype=source.dtype),
        (torch.arange(total) % kept).view(inverse)
        if numbered
        else torch.zeros(0, dtype=torch.int64),
        torch.full((int(total * share),), total // kept)
        if counted
        else torch.zeros(0, dtype=torch.int64),
    )


def _spread(shape: torch.Size, count: int) -> torch.Tensor:
    """`count` positions spread evenly over a tensor of `shape`: (count, dimensions)."""
    total = max(1, torch.Size(shape).numel())
    flat = torch.arange(count) * total // max(1, count)
    return torch.stack(torch.unravel_index(flat, shape), 1) if len(shape) else flat[:, None][:, :0]


def _fill_round_robin(alias: torch.Tensor, op: _Op, args: tuple) -> None:
    """Indices as even as they can be: row i gets i*k, i*k+1, … modulo the number of choices."""
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if source is None or source.dim() == 0:
        alias.zero_()
        return
    topk = op.name == "aten::topk"
    position = 2 if topk else 1
    dim = args[position] if len(args) > position and isinstance(args[position], int) else -1
    choices = source.shape[dim]
    alias.copy_((torch.arange(alias.numel()) % max(1, choices)).view(alias.shape))
