"""Computes small and integral tensors on the CPU, so that values which programs read are real.

The kernels of a virtual GPU do nothing, but programs branch on values: masks that are
all true, counts, lengths, indices, flags. `ValueLayer` runs every operator as it is, on the virtual
GPU, for its memory; then, where the result is small or integral, runs it again on the CPU over the
very bytes that stand for device memory.

Uncomputed values (large floats and what depends on them) read as zeros. A value that depends
on such floats but steers the program (a comparison, an index, a count) follows a rule that
the user chooses, and each such read is reported with the script's line.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from oomph._older_python import zip
from oomph._untraced import untraced
from oomph._user_code import user_line
from oomph._virtual_gpu import dispatch, lbfgs
from oomph._virtual_gpu.assumptions import RULES, Assumptions
from oomph._virtual_gpu.compiled_code import CompiledCode
from oomph._virtual_gpu.contents import Contents, Place
from oomph._virtual_gpu.cuda_only import DRAWING
from oomph._virtual_gpu.device_memory import base_pointer, cpu_alias
from oomph._virtual_gpu.filling import Filling, sized_by_rule, spread, zero
from oomph._virtual_gpu.fills import Fill, follow, repeated
from oomph._virtual_gpu.graph_values import Graphs, alias
from oomph._virtual_gpu.host_draws import DRAWS, HostDraws, state_kept
from oomph._virtual_gpu.library import launches, library, strange
from oomph._virtual_gpu.limits import (
    FLOAT_LIMIT,
    FOLLOWED_LIMIT,
    LONG,
    PRODUCT_LIMIT,
    WIDE_LIMIT,
    Budget,
    multiplications,
    small,
)
from oomph._virtual_gpu.operators import (
    CHECKS,
    COLLECTIVES,
    CONSTANTS,
    DROPOUT,
    EMPTY,
    PRODUCTS,
    ZEROS,
    Operator,
    parts,
    tensors,
)
from oomph._virtual_gpu.random_numbers import DRAWN, SPENT, Drawn, Numbers
from oomph._virtual_gpu.triton_kernels import TritonKernels

_CPU = torch.device("cpu")
_aten = torch.ops.aten
_NUMBERS = {bool, int, float, complex}
LONG_NS = 100_000
"""An operator on the CPU counts by itself from here on; what shorter ones take is in what any operator takes the host."""
PAUSE_NS = 1_000_000
"""What the script's thread does from here on between two operators counts by itself, if nothing is launched meanwhile: numpy's work, mostly."""
_disabled_dispatch = torch._C._disabled_torch_dispatch_impl


_TO_GPU = {"aten::_to_copy", "aten::copy_"}
"""What comes from the host with them is a tensor's own values, all of them."""
_COPIES = {"aten::_pin_memory", "aten::resize_"}
"""They copy what their argument holds, though their result is said to have no values of its own."""

_BELOW = (os.path.dirname(__file__), torch._ops.__file__)
"""Files of the frames between an operator's caller and this layer."""
_ENGINE = torch.autograd.graph._engine_run_backward.__code__


def _by_engine() -> bool:
    """Whether autograd's engine called the operator that runs, and no Python in between: recomputation is called by Python."""
    if torch._C._current_autograd_node() is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BELOW):
        frame = frame.f_back
    return frame is None or frame.f_code is _ENGINE


class _Here(threading.local):
    """What holds of one thread: whether its operators run for their memory alone, as somebody else computes their values."""

    only_memory = False


NOT_FOLLOWED = "integers that follow from unknown values are zeros: there are too many to compute"
"""Why tensors hold zeros that were given up."""


class ValueLayer:
    """Computes small and integral tensors for real, forward and backward, in every thread it reaches.

    `unknown` says how comparisons of unknown values resolve, one of `RULES`;
    `assumptions` collects what had to be assumed.
    """

    def __init__(
        self,
        assumptions: Assumptions,
        unknown: str = "half",
        virtual: bool = True,
        compute: int | None = None,
    ) -> None:
        """On a real GPU (`virtual` false) operators are only announced to `before`.

        With `compute`, everything is computed whose values take so many bytes of host memory or less.

        Raise `ValueError` for another rule, `RuntimeError` if no virtual GPU is loaded.
        """
        if unknown not in RULES:
            raise ValueError(f"unknown must be one of {', '.join(RULES)}, not {unknown!r}")
        self.assumptions = assumptions
        self.unknown = unknown
        self._filling = Filling(unknown)
        self.cpu_ns = 0
        """What the script's own thread took for operators on tensors of the CPU, those that take long, and without operators: its data, mostly."""
        self._counts_pauses = False
        self._left = 0, 0, 0
        """The clock, the script's thread's time, and how much was launched, when that thread's newest operator was done, while pauses count."""
        self.met_gpu = False
        """Whether an operator of the GPU came since this was last set."""
        # Called with each operator's name before it runs; may give a function to call it through.
        self.before: Any = None
        # Called, while `before` is, with each tensor on a virtual GPU that an operator is given.
        self.reads: Any = None
        # And with both tensors of an operator that computes element by element.
        self.pairs: Any = None
        # Called, if it is there while `before` is, with what an operator changes, before it runs.
        self.changes: Any = None
        self._replace_host: Any = None
        self._budget = None if compute is None else Budget(compute)
        self._graphs: Graphs | None = None
        self._host_draws = HostDraws(self.aside) if virtual and compute is None else None
        self._gone = False
        self._virtual = virtual
        self._gpu = library() if virtual else None
        self._keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(dispatch.KEY))
        # What nobody computed, and the storages of wide floats of which something was.
        self._contents = Contents()
        self._wide: set[int] = set()
        self._followed = 0
        # A CPU multiplies integers one by one.
        self._refused: set[Any] = {_aten._int_mm.default}
        # Results of collectives that run when their group ends: by their address.
        self._awaited: dict[int, tuple[Place, bool]] = {}
        # What L-BFGS read last for a loss.
        self._losses = 0.0
        # Whether what nobody computed counts as the zeros that it reads as.
        self._as_zeros = False
        self._plain_types: dict[type, bool] = {}
        self._here = _Here()
        self._strange: Any = strange() if virtual else None
        self._strange_before = 0
        self._specials = {
            "aten::nonzero": self._nonzero,
            "aten::masked_select": self._masked_select,
            "aten::masked_scatter_backward": self._masked_scatter_backward,
            "aten::_unique": self._sized_on_cpu,
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
            "aten::_is_all_true": self._all_true,
            "aten::_coalesce": self._coalesce,
            "aten::isin": self._on_cpu_alone,
            "aten::mode": self._on_cpu_alone,
            "aten::linalg_eig": self._on_cpu_alone,
            "aten::_linalg_eigvals": self._on_cpu_alone,
            "aten::_to_sparse": self._to_sparse,
            "aten::_to_sparse_csr": self._to_sparse,
            "aten::_to_sparse_csc": self._to_sparse,
            "aten::_to_sparse_bsr": self._to_sparse,
            "aten::_to_sparse_bsc": self._to_sparse,
            "aten::mm": self._product,
            "aten::addmm": self._product,
            "aten::linalg_matrix_exp": self._matrix_exp,
            "aten::lift_fresh": self._fresh,
            "aten::resize_": self._resize,
            "aten::equal": self._equal,
            "aten::allclose": self._equal,
            "aten::_cudnn_rnn_flatten_weight": self._flatten,
            "aten::_cudnn_init_dropout_state": self._dropout_state,
            "aten::_linalg_check_errors": self._check_errors,
            "aten::normal": self._normal,
            "aten::segment_reduce": self._segment_reduce,
        }
        self._ops: dict[Any, Operator] = {}

    def install(self) -> None:
        """Activate in this thread, in threads that Python starts from now on, and in autograd's."""
        dispatch.install(self)
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            dispatch.include(not self._gone)
            original(thread)

        threading.Thread.run = run  # type: ignore[method-assign]
        self._watch_compiled_code()
        if self._virtual:
            self._graphs = Graphs(self._contents.lose_storage)
        if self._budget is not None:
            triton = TritonKernels(self)
            CompiledCode(self, triton)
            # The kernels into which TorchScript fuses operators do not come here.
            torch._C._jit_set_texpr_fuser_enabled(False)

    def _watch_compiled_code(self) -> None:
        """Fill the buffers of compiled code with zeros instead of stale bytes.

        That code allocates its buffers without the dispatcher, and its kernels do nothing.
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
                self._contents.lose_storage(storage.data_ptr())
            return out

        guards._empty_strided_cuda = empty_strided_cuda

    def aside(self) -> Any:
        """A context whose operators do not come here."""
        return torch._C._ExcludeDispatchKeyGuard(self._keys)

    def may_stand_aside(self) -> bool:
        """Whether nothing depends on seeing each operator of the CPU."""
        return self._virtual and not (self._budget or self._host_draws or self.captures())

    @contextlib.contextmanager
    def standing_aside(self) -> Any:
        """Operators of the CPU do not come here: preparing a batch of many small ones took five times as long. If kernels ran all the
        same, nothing is known any more of what is on the GPU."""
        before = launches()
        with self.aside():
            yield
        if launches() != before:
            self._contents.fills.clear()
            self._contents.lose_all()
            self.assumptions.add(
                "value",
                "a data loader used the GPU in a later batch and not in the first: nothing that was on the GPU until then is known",
                user_line(),
            )

    def captures(self) -> bool:
        """Whether a graph is being captured."""
        return self._graphs is not None and self._graphs.capturing()

    def replayed(self, step: Callable[[], None]) -> None:
        """Do `step` in each replay of the graph that is being captured."""
        assert self._graphs is not None
        self._graphs.add(step)

    def knows(self, places: list[torch.Tensor]) -> bool:
        """Whether all contents are known of tensors of the GPU, given by their `alias`."""
        return not any(self._contents.unknown(t) for t in places)

    def know(self, places: list[torch.Tensor], known: bool) -> None:
        """The contents of tensors of the GPU, given by their `alias`, are known from now on, or not."""
        for t in places:
            (self._contents.learn if known else self._contents.lose)(t)

    def compute_apart(self, func, args, kwargs, numbers: Numbers):
        """What the GPU's operator `func` gives for tensors of the CPU."""
        op = self._ops.get(func) or self._meet(func)
        args, kwargs = self._to_cpu(args), {name: self._to_cpu(v) for name, v in kwargs.items()}
        if op.name in PRODUCTS:
            args = tuple(map(_widened, args))
        if op.equivalent is not None:
            found = list(op.equivalent(*args, **kwargs))
            missing = len(func._schema.returns) - len(found)
            return found[0] if len(func._schema.returns) == 1 else (*found, *[None] * missing)
        if not op.random:
            return func(*args, **kwargs)
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        found = self._run_random(func, args, kwargs, generator, 0)
        if op.name in DRAWN:
            outs = tensors(found, [])
            numbers.draw(lambda drawn: _draw(op, drawn, outs, args, kwargs))
        return found

    def replace_host(self, replace: Callable[[str, tuple], Any]) -> None:
        """Ask `replace` for each operator, by its name and arguments, what it gives.

        The operator runs if that is `NotImplemented`.
        """
        self._replace_host = replace

    def leave(self) -> None:
        """Deactivate: in forked processes, where CUDA cannot be used, and where nothing is recorded any more."""
        self._gone = True
        self.count_pauses(False)
        if self._host_draws:
            self._host_draws.draw_all()
        self.before = None
        dispatch.include(False)

    def come_back(self) -> None:
        """Activate again, in this thread, in threads that it starts, and in autograd's."""
        self._gone = False
        dispatch.include(True)

    def call(self, func, *args, **kwargs):
        """Every operator comes here."""
        op = self._ops.get(func)
        if op is None:
            op = self._meet(func)
        if op.composite and not any(isinstance(t, torch.Tensor) and t.is_nested for t in args):
            return func._op_dk(
                dispatch.COMPOSITE, *args, **kwargs
            )  # its parts come here one by one
        modes = torch._C._len_torch_dispatch_stack()
        if modes and self._virtual:
            # What the program's mode makes of it comes here, and not the operator itself.
            dispatch.let_in(type(torch._C._get_dispatch_stack_at(modes - 1)))
            with torch._C._ExcludeDispatchKeyGuard(self._keys):
                return func(*args, **kwargs)
        if self.before is not None:
            if self.changes is not None and op.mutated:
                self.changes(op.changed(args, kwargs))
            within = self.before(op.name)
            if within is not None:
                return within(self._timed, func, op, args, kwargs)
        return self._timed(func, op, args, kwargs)

    def count_pauses(self, whether: bool) -> None:
        """From now on count what the script's thread, which calls this, does between operators, or stop that: in a model or a backward pass
        it is in what operators and modules take the host, and a recorder does more there."""
        self._counts_pauses = whether
        if whether:
            self._left = time.perf_counter_ns(), time.thread_time_ns(), launches()

    def _timed(self, func, op, args, kwargs):
        """Run an operator, and count what long ones take that have nothing to do with the GPU, and pauses."""
        if self._counts_pauses and threading.current_thread() is threading.main_thread():
            self._count_pause()
            out = self._timed_alone(func, op, args, kwargs)
            self._left = time.perf_counter_ns(), time.thread_time_ns(), launches()
            return out
        return self._timed_alone(func, op, args, kwargs)

    def _count_pause(self) -> None:
        wall, left, launched = self._left
        if time.perf_counter_ns() - wall > PAUSE_NS and launches() == launched:
            took = time.thread_time_ns() - left
            if took > PAUSE_NS:
                self.cpu_ns += took

    def _timed_alone(self, func, op, args, kwargs):
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if getattr(first, "is_cuda", False):
            return self._enter(
                func, op, args, kwargs
            )  # reading the clock takes as long as some operators
        began = time.thread_time_ns()
        out = self._enter(func, op, args, kwargs)
        took = time.thread_time_ns() - began
        if took > LONG_NS and threading.current_thread() is threading.main_thread():
            involved = tensors((args, tuple(kwargs.values()), out), [])
            if involved and not any(t.is_cuda for t in involved):
                self.cpu_ns += took
        return out

    def _meet(self, func) -> Operator:
        name = func._schema.name
        collective = name.startswith(COLLECTIVES)
        special = self._collective if collective else self._specials.get(name)
        op = self._ops[func] = Operator(func, special)
        return op

    def _enter(self, func, op, args, kwargs):
        """Run an operator below this layer."""
        with torch._C._ExcludeDispatchKeyGuard(self._keys):
            if not self._virtual:
                return func(*args, **kwargs)
            for at in op.slots:
                if at < len(args) and type(args[at]) in _NUMBERS:
                    as_tensor = torch.tensor(args[at], device=_CPU)
                    args = (*args[:at], as_tensor, *args[at + 1 :])
            reads = self.reads if self.before is not None else None
            given = tensors(args, [])
            device = kwargs.get("device")
            on_gpu = (
                not (given if device is None else device == _CPU) or not kwargs.keys() <= _KINDS
            )
            if device is not None and device != _CPU:
                self.met_gpu = True
            for t in given:
                kind = type(t)
                plain = self._plain_types.get(kind)
                if plain is None:
                    own = getattr(kind, "__torch_dispatch__", None)
                    plain = own is torch.Tensor.__torch_dispatch__ or own is _disabled_dispatch
                    self._plain_types[kind] = plain
                    if not plain:
                        dispatch.let_in(kind)
                if not plain:
                    if hasattr(kind, "_op_dispatcher"):
                        with dispatch.Local():
                            return func(*args, **kwargs)
                    return func(*args, **kwargs)  # a wrapper: the tensors inside come here
                if t.is_cuda:
                    on_gpu = self.met_gpu = True
                    if reads is not None:
                        reads(t)
            if reads is not None and op.mutated and given and given[0].is_cuda:
                # What it changes comes first, but for `out=`.
                reads.writes(op.name, given[0])
            if reads is not None and op.pairs and len(given) > 1 and self.pairs is not None:
                self.pairs(*given[:2])
            if self._host_draws is not None and (self._host_draws or op.name in DRAWS):
                if not on_gpu and self._is_postponed(func, op, args, kwargs):
                    return args[0]
                if on_gpu and op.name in _TO_GPU:
                    if self._host_draws.waits(args[1 if op.mutated else 0]):
                        return self._take_undrawn(func, op, args, kwargs)
                elif self._host_draws.taken:
                    self._host_draws.sweep()
                if not op.view or op.name in _COPIES:
                    for t in given:
                        if t.is_cuda or not self._host_draws.waits(t):
                            continue
                        if op.overwrites and t is args[0]:
                            self._host_draws.overwritten(t)
                        else:
                            self._host_draws.draw(t)
            if self._awaited:
                self._collect()
            if self._strange.value != self._strange_before:
                self._distrust()
            if self._replace_host is not None:
                replaced = self._replace_host(op.name, args)
                if replaced is not NotImplemented:
                    return replaced
            # A mode of the program's (`torch.set_default_device`) and its tracer would see what runs here.
            with op.apart():
                if op.special is None:
                    if on_gpu or op.reads:
                        return self._run(func, op, args, kwargs)
                    # Programs prepare batches so, often by the thousand.
                    return func(*args, **kwargs)
                with untraced():
                    return op.special(func, op, args, kwargs)

    def _is_postponed(self, func, op, args, kwargs) -> bool:
        """Whether an operator on tensors of the CPU waits until its result is read."""
        assert self._host_draws is not None
        return (
            len(op.mutated) == 1
            and op.mutated[0][0] == 0
            and isinstance(args[0], torch.Tensor)
            and (op.name in DRAWS or self._host_draws.waits(args[0]))
            and torch._C._get_tracing_state() is None
            and self._host_draws.postpone(func, op, args, kwargs)
        )

    def _take_undrawn(self, func, op, args, kwargs):
        """Numbers that are still to be drawn go to the GPU: as of all large random tensors there, nobody knows them."""
        self._gpu.oomph_vgpu_begin(op.keeps, _by_engine())
        try:
            out = func(*args, **kwargs)
        finally:
            self._gpu.oomph_vgpu_end()
        with untraced():
            if out.is_cuda:
                self._clear(out)
                self._wide.discard(base_pointer(out))
            self._lose([out], not op.mutated)
        assert self._host_draws is not None
        self._host_draws.taken = True
        return out

    def _distrust(self) -> None:
        """Somebody's own kernels ran: nobody knows what they wrote."""
        self._strange_before = self._strange.value
        self._contents.fills.clear()
        if self._budget is None:
            return
        self._contents.lose_all()
        self.assumptions.add(
            "value",
            "a kernel that comes through no operator of PyTorch ran: nothing that was on the GPU until then is known",
            user_line(),
        )
        if self.captures():
            self._graphs.add(self._contents.lose_all)

    @contextlib.contextmanager
    def answered(self) -> Any:
        """Somebody says what kernels write that are launched inside."""
        self._gpu.oomph_vgpu_expect(1)
        try:
            yield
        finally:
            self._gpu.oomph_vgpu_expect(0)

    @contextlib.contextmanager
    def memory_alone(self) -> Any:
        """Operators and kernels inside run for their memory: the caller says what they wrote (`know`)."""
        before, self._here.only_memory = self._here.only_memory, True
        try:
            with self.answered():
                yield
        finally:
            self._here.only_memory = before

    # ---- collectives ----

    def _collective(self, func, op, args, kwargs):
        """An operator of `torch.distributed`: the virtual NCCL passes values between ranks.

        It is told whether this rank's are known, and says whether the result's are.
        """
        functional = op.name.startswith("_c10d_functional")
        if functional and op.name.endswith("wait_tensor"):
            return func(*args, **kwargs)
        first = tensors(args[:1], [])
        second = tensors(args[1:2], [])
        given = [t for t in (first if functional else second or first) if t.is_cuda]
        self._gpu.oomph_vgpu_offer(not any(self.is_unknown(t) for t in given))
        try:
            out = func(*args, **kwargs)
        finally:
            taken = self._gpu.oomph_vgpu_taken()
        if op.name.endswith("::send"):
            return out
        outs = [t for t in (tensors(out, []) if functional else first) if t.is_cuda]
        if taken == 0:
            # Nothing came: too large to be carried, or the group that it belongs to has not ended.
            for t in outs:
                if self._computable(t) and t.numel():
                    place = Place(t)
                    self._awaited[t.data_ptr()] = place, place.whole(t)
            self._lose(outs, functional)
        elif taken == 1:
            self._learn(outs, functional)
        else:
            self._lose(outs, functional)
        if op.name == "c10d::scatter_" and second:
            # The root copies its own part, which no rank brings.
            own, into = second[args[3]], first[0]
            if own.is_cuda and self._computable(own) and not self.is_unknown(own):
                self._awaited.pop(into.data_ptr(), None)
                cpu_alias(into).copy_(cpu_alias(own))
                self._learn([into], False)
        return out

    def _collect(self) -> None:
        """Learn what grouped collectives have brought since."""
        address = ctypes.c_uint64()
        while (known := self._gpu.oomph_vgpu_arrival(ctypes.byref(address))) >= 0:
            awaited = self._awaited.pop(address.value, None)
            if known and awaited is not None:
                self._contents.learn_place(*awaited)

    # ---- running ----

    def _run(self, func, op, args, kwargs):
        if op.view:
            out = func(*args, **kwargs)
            if op.name in EMPTY and (self._wide or self._contents.fills) and out.is_cuda:
                self._wide.discard(base_pointer(out))
                self._contents.fills.pop(base_pointer(out), None)
            return out
        # What is captured runs in replays: until then what it changes is as it was, also where the driver copies or fills.
        captured = _changed(op, args, kwargs) if self.captures() else []
        before = [
            (cpu_alias(t), cpu_alias(t).clone())
            for t in captured
            if t.is_cuda and (self._budget is not None or not self.is_unknown(t))
        ]
        if op.reads:
            self._empty(op, args)
            out = func(*args, **kwargs)
        else:
            self._gpu.oomph_vgpu_begin(op.keeps, _by_engine())
            try:
                out = func(*args, **kwargs)
            finally:
                unanswered = self._gpu.oomph_vgpu_end()
            if unanswered and not op.name.startswith(CHECKS):
                self.assumptions.read(f"{op.name} read a value back from the device; it got zero")
        # The tracer has recorded the operator before it came here, or records its parts (those of a convolution).
        with untraced():
            for place, values in before:
                place.copy_(values)
            self._settle(func, op, args, kwargs, out)
        if op.name == "aten::_amp_foreach_non_finite_check_and_unscale_":
            self._assume_finite(args[1])
        return out

    def _assume_finite(self, found: torch.Tensor) -> None:
        """Of gradients that are not computed nobody knows whether one is infinite: the scaler's flag is as before, and so is its scale."""
        self.assumptions.add(
            "value",
            "gradients are assumed to be finite: the gradient scaler skips no step",
            user_line(),
        )
        if found.is_cuda and self.is_unknown(found) and not self.captures():
            cpu_alias(found).zero_()
            self._learn([found], False)

    def _computable(self, t: torch.Tensor) -> bool:
        """Whether a tensor is computed if what it follows from is."""
        return self._budget is not None or small(t)

    def _affords(self, func, op, args, outs) -> bool:
        """Whether the time and the memory that an operator takes on the CPU are allowed."""
        if self._budget is None:
            return multiplications(op, args, outs) <= PRODUCT_LIMIT
        size = sum(t.numel() * t.element_size() for t in outs if t.is_cuda and not small(t))
        if size == 0 or self._budget.has(size):
            return True
        self.assumptions.add(
            "value", "the budget of --compute is used up: what follows is not computed", user_line()
        )
        return False

    def _followed_enough(self, outs: list[torch.Tensor]) -> bool:
        """Whether so much was computed of values that a rule chose that `outs` are not."""
        if self._budget is not None:
            return False
        long = [t for t in outs if t.numel() > LONG and t.dtype != torch.bool]
        self._followed += sum(t.numel() for t in long if t.is_cuda)
        return bool(long) and self._followed > FOLLOWED_LIMIT

    def _settle(self, func, op, args, kwargs, out) -> None:
        """Give `out`, and what `func` changed in place, their values."""
        changed = _changed(op, args, kwargs)
        made = _made(changed, out)
        outs = changed + made
        if self._here.only_memory:
            self._lose(changed, False)
            self._lose(made, True)
            return
        if self.captures():
            self._settle_then(func, op, args, kwargs, out, changed, made)
            return
        if op.name in CONSTANTS or (op.repeats and (self._contents.fills or op.reads)):
            with contextlib.suppress(RuntimeError, IndexError, TypeError, ValueError):
                if self._follow(func, op, args, kwargs, outs):
                    return
        worth = False
        for t in outs[:1] if op.name == DROPOUT else outs:
            if t.is_cuda:
                if self._computable(t) or (
                    t.numel() <= WIDE_LIMIT and not op.random and op.name not in CONSTANTS
                ):
                    worth = True
                elif self._wide:
                    self._wide.discard(base_pointer(t))
            elif op.reads and t.device.type == "cpu":
                self._leaves_device(op, args, t)
        if not worth:
            self._lose(changed, False)
            self._lose(made, True)
            return
        inputs = op.inputs(args, kwargs)
        all_computable, rules = True, set()
        for t in inputs:
            if t.is_cuda and self.is_unknown(t):
                fill = self._contents.fill(t)
                repeats = fill is not None and fill.known and t.numel() <= WIDE_LIMIT
                if repeats and op.name not in PRODUCTS:
                    continue
                if not self._computable(t) or (t.is_floating_point() and not self._as_zeros):
                    all_computable = False
                    break
                rules.add(self._contents.why(t))
        if all_computable:
            for t in outs:
                if (
                    t.is_cuda
                    and not self._computable(t)
                    and (t.numel() > WIDE_LIMIT or rules or not (inputs or op.mutated))
                ):
                    all_computable = False
        # What follows from zeros that stand for values must not look as if it were known: a comparison of them chooses by its rule.
        given_up = NOT_FOLLOWED in rules or (
            all_computable and bool(rules) and self._followed_enough(outs)
        )
        if (
            all_computable
            and func not in self._refused
            and not given_up
            and self._affords(func, op, args, outs)
            and self._compute(func, op, args, kwargs, out)
        ):
            if rules:
                why = rules.pop() if len(rules) == 1 else None
                self._lose(changed, False, why)
                self._lose(made, True, why)
                return
            if op.overwrites:
                self._learn(changed, False)
            if made:
                # A result may also be another view of what it was made from (`_unsafe_view`).
                given = {base_pointer(t) for t in inputs if t.is_cuda}
                self._learn(made, not any(t.is_cuda and base_pointer(t) in given for t in made))
            return
        # What it only passes on is as it was: the weights of a recurrent layer.
        given = {base_pointer(t) for t in inputs if t.is_cuda}
        made = [t for t in made if not t.is_cuda or base_pointer(t) not in given]
        why, unwritten = self._filling.fill(func, op, args, kwargs, changed + made)
        if given_up and why is None and not unwritten:
            why = NOT_FOLLOWED
            self.assumptions.add("value", why, user_line())
        self._lose(changed, False, why)
        self._lose(made, True, why)
        for t, fill in unwritten:
            self._contents.set_fill(t, fill, why)

    def _follow(self, func, op, args, kwargs, outs) -> bool:
        """Give results the value that repeats in all that they follow from, without computing each element; False if none does."""
        inputs = op.inputs(args, kwargs)
        if op.name in CONSTANTS:
            if self._computable(outs[0]) and self._contents.fill(outs[0]) is None:
                return False
        elif not any(map(self._contents.fill, inputs)) and not (
            # Masks from the host, and what becomes of them.
            op.reads
            and outs
            and not self._computable(outs[0])
            and not inputs[0].is_floating_point()
        ):
            return False
        found = follow(func, op, args, kwargs, outs, self._repeated)
        if found is None:
            return False
        why = next((w for w in map(self._contents.why, inputs) if w), None)
        for t, fill in zip(outs, found, strict=True):
            if not fill.known and (t.is_floating_point() or not t.is_cuda):
                return False
        for t, fill in zip(outs, found, strict=True):
            if not t.is_cuda:
                t.copy_(fill.spread(t))
            elif t.numel() > FLOAT_LIMIT or self._contents.repeats(t, fill):
                self._wide.discard(base_pointer(t))
                self._contents.set_fill(t, fill, why)
            else:
                cpu_alias(t).copy_(fill.spread(t))
                self._contents.learn(t)
                if not fill.known:
                    self._lose([t], False, why)
        return True

    def _write_fills(self, outs: list[torch.Tensor]) -> None:
        """Write what repeats in tensors that an operator is about to change."""
        for t in outs:
            fill = self._contents.fill(t)
            if fill is not None:
                cpu_alias(t).copy_(fill.spread(t))
                if fill.known:
                    self._learn([t], False)
                else:
                    self._lose([t], False, self._contents.why(t))

    def _repeated(self, t: torch.Tensor) -> Fill | None:
        """What repeats in `t`: kept, or found in its bytes."""
        if t.is_cuda:
            fill = self._contents.fill(t)
            if fill is not None or self.is_unknown(t):
                return fill
        if t.layout is not torch.strided or t.numel() == 0 or t.is_quantized:
            return None
        return repeated(_alias_of(t) if t.is_cuda else t)

    def _settle_then(self, func, op, args, kwargs, out, changed, made) -> None:
        """What is captured runs in replays: they compute it, or what it writes is unknown from then on."""
        assert self._graphs is not None
        outs = [t for t in changed + made if t.is_cuda]
        inputs = op.inputs(args, kwargs)
        places = {base_pointer(t) for t in outs}
        if self._budget is not None or (
            all(map(self._computable, outs))
            and all(map(self._known_then, inputs))
            and func not in self._refused
            and self._affords(func, op, args, outs)
        ):
            self._graphs.computed |= places
            self._capture(func, op, args, kwargs, out, changed + made)
        else:
            self._graphs.computed -= places
            self._graphs.lose(places)
            self._lose(changed, False)
        # What it only passes on is as it was.
        given = {base_pointer(t) for t in inputs if t.is_cuda}
        made = [t for t in made if t.is_cuda and base_pointer(t) not in given]
        zero(made)
        self._lose(made, True)

    def _known_then(self, t: torch.Tensor) -> bool:
        """Whether replays may know what is in `t`: it is known now, or they compute it."""
        assert self._graphs is not None
        return not t.is_cuda or base_pointer(t) in self._graphs.computed or not self.is_unknown(t)

    def _capture(self, func, op, args, kwargs, out, outs) -> None:
        """Compute in each replay what is captured now."""
        assert self._graphs is not None
        inputs = alias([t for t in op.inputs(args, kwargs) if t.is_cuda])
        written = alias([t for t in outs if t.is_cuda])
        results = alias(tensors(out, []))
        args, kwargs = alias(tuple(args)), {name: alias(v) for name, v in kwargs.items()}
        at = None
        spent = SPENT.get(op.name, 0)
        if spent:
            generator = _generator((*args, *kwargs.values()), out)
            at = self._graphs.draw(generator, spent)
        elif op.random:
            generator = _generator((*args, *kwargs.values()), out)
            if op.name in DRAWN:
                # It draws as much each time; how much, a first draw tells, into nothing that anybody reads.
                trial = Drawn(generator, 1 << 40)
                with contextlib.suppress(ValueError):
                    _draw(
                        op,
                        trial,
                        [torch.empty_like(t) for t in results],
                        self._to_cpu(args),
                        kwargs,
                    )
                    at = self._graphs.draw(generator, (1 << 40) - trial.offset)

        def replay() -> None:
            known = not any(self._contents.unknown(t) for t in inputs)
            if not known or not op.random:
                known = known and self._compute(func, op, args, kwargs, results, results)
            elif at is None or (offset := at()) is None:
                known = False
            elif spent:
                given = {name: self._to_cpu(v) for name, v in kwargs.items()}
                drawn = self._run_random(func, self._to_cpu(args), given, generator, offset)
                known = _write(results, tensors(drawn, []))
            else:
                drawn = Drawn(generator, offset)
                known = _draw(op, drawn, results, self._to_cpu(args), kwargs)
            for t in written:
                (self._contents.learn if known else self._contents.lose)(t)

        self._graphs.add(replay)

    def _learn(self, outs, fresh: bool) -> None:
        """The contents of `outs` are real now; `fresh` if each has memory of its own."""
        for t in outs:
            if not t.is_cuda:
                continue
            pointer = base_pointer(t)
            if not self._computable(t) and pointer not in self._wide:
                if pointer not in self._contents:
                    self._contents.lose_storage(pointer)
                self._wide.add(pointer)
            if fresh:
                self._contents.forget_storage(pointer)
            else:
                self._contents.learn(t)

    def _compute(self, func, op, args, kwargs, out, results=None) -> bool:
        """Run `func` on the CPU over the bytes of device memory; False if it cannot.

        `results` are where its results stand, by default those of `out` on the device.
        """
        if op.name in ZEROS and results is None and all(map(self._clear, tensors(out, []))):
            return True
        if results is None and self._brought(op, args):
            return True
        try:
            if op.mutated and _changes_sparse(op, args, kwargs):
                return False  # its indices and values are others than before
            if self._contents.fills and not op.overwrites:
                self._write_fills(_changed(op, args, kwargs))
            if results is None:
                results = [cpu_alias(t) if t.is_cuda else None for t in tensors(out, [])]
            cpu_args = self._to_cpu(args)
            cpu_kwargs = {name: self._to_cpu(value) for name, value in kwargs.items()}
            into = cpu_kwargs.get("out")
            if op.name in PRODUCTS:
                cpu_args = tuple(map(_widened, cpu_args))
                cpu_kwargs = {name: _widened(value) for name, value in cpu_kwargs.items()}
            equivalent = op.equivalent if self._budget is not None else None
            if equivalent is not None:
                cpu_kwargs.pop("out", None)
                if equivalent in DRAWING:
                    generator = _generator((), out)
                    cpu_kwargs["drawn"] = Drawn(generator, generator.get_offset())
                return _write(results, equivalent(*cpu_args, **cpu_kwargs))
            if op.random:
                generator = _generator((*args, *kwargs.values()), out)
                if op.name in DRAWN and generator.device.type == "cuda":
                    drawn = Drawn(generator, generator.get_offset())
                    # Another kernel of the GPU draws other numbers of the same distribution.
                    with contextlib.suppress(ValueError):
                        return _draw(op, drawn, results, cpu_args, cpu_kwargs)
                offset = generator.get_offset() if generator.device.type == "cuda" else 0
                result = self._run_random(func, cpu_args, cpu_kwargs, generator, offset)
            else:
                result = func(*cpu_args, **cpu_kwargs)
                if into is not None and into is not cpu_kwargs["out"]:
                    into.copy_(cpu_kwargs["out"])
            if op.mutated:
                # What it changes, the CPU's operator has changed.
                done = {t.data_ptr() for t in _changed(op, args, kwargs)}
                results = [None if t is None or t.data_ptr() in done else t for t in results]
            made = tensors(result, [])
            # The parts of a sparse result belong together.
            if isinstance(result, torch.Tensor) and len(made) > 1:
                shapes = [None if t is None else t.shape for t in results]
                if any(s not in (None, t.shape) for s, t in zip(shapes, made, strict=False)):
                    return False
            return _write(results, made)
        except NotImplementedError:
            self._refused.add(func)  # no such operator on the CPU
            return False
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False  # not for these types or values: the result stays unknown

    def _clear(self, t: torch.Tensor) -> bool:
        """Zero a tensor without touching its pages, which programs that time kernels ask for a hundred times a kernel.

        False if it cannot: the tensor shares its range of memory with others.
        """
        if not t.is_cuda or t.layout != torch.strided or not t.is_contiguous():
            return False
        self._gpu.oomph_vgpu_clear(t.data_ptr(), t.nbytes)
        return True

    def _empty(self, op, args) -> None:
        """Forget what others left in memory that goes to the host, so that the copy takes none there."""
        if op.name == "aten::copy_" and args[1].is_cuda and not args[0].is_cuda:
            source = args[1]
            if source.is_contiguous() and self._contents.stale(source):
                self._gpu.oomph_vgpu_clear(source.data_ptr(), source.nbytes)

    def _brought(self, op, args) -> bool:
        """Whether the bytes of pinned host memory are on the device now: those that were ever written, as of tensors that a lever
        keeps on the host."""
        if op.name != "aten::copy_" or not args[0].is_cuda or args[1].is_cuda:
            return False
        to, source = args[:2]
        if (
            source.dtype != to.dtype
            or source.shape != to.shape
            or not (source.is_contiguous() and to.is_contiguous())
            or source.is_neg() != to.is_neg()
            or source.is_conj() != to.is_conj()
        ):
            return False
        return bool(self._gpu.oomph_vgpu_bring(to.data_ptr(), source.data_ptr(), to.nbytes))

    def _to_cpu(self, value):
        if isinstance(value, torch.Tensor):
            return self._host(value)
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

    def _host(self, t: torch.Tensor) -> torch.Tensor:
        """`t` on the CPU: over its bytes, unless they are not written. Then it is not to be changed."""
        if not t.is_cuda:
            return t
        fill = self._contents.fill(t)
        if fill is None:
            return _alias_of(t)
        if t.numel() > FLOAT_LIMIT:
            return fill.spread(t)
        alias = cpu_alias(t)
        alias.copy_(fill.spread(t))
        return alias

    def _run_random(self, func, cpu_args, cpu_kwargs, generator, offset: int):
        """Draw other numbers than the device, from its random state, which is at `offset` then: a program that restores an
        earlier state draws the same numbers again. The script's CPU random state does not change."""
        seed = hash((generator.initial_seed(), offset)) & 0x7FFF_FFFF_FFFF_FFFF
        with state_kept():
            # Not `torch.manual_seed`, which seeds the GPUs, too.
            torch.default_generator.manual_seed(seed)
            return func(*cpu_args, **cpu_kwargs)

    # ---- unknown values ----

    def _lose(self, outs, fresh: bool, why: str | None = None) -> None:
        """The contents of `outs` are unknown and were chosen by the rule `why`.

        Of large tensors too: a small part of one is no more known than the whole.
        """
        for t in outs:
            if t.is_cuda:
                if fresh:
                    stale = t.is_floating_point() and not self._computable(t)
                    self._contents.lose_storage(base_pointer(t), why, stale)
                else:
                    self._contents.lose(t, why)

    def is_unknown(self, t: torch.Tensor) -> bool:
        """Whether the contents of `t` were never computed, or follow from such contents."""
        if not t.is_cuda or t.layout is not torch.strided:
            return False
        fill = self._contents.fill(t)
        if fill is not None and fill.known and t.numel() <= FLOAT_LIMIT:
            self._host(t)  # a small part of it, which may be read where it is
            return False
        if (
            not self._computable(t)
            and base_pointer(t) not in self._wide
            and not self._repeats_known(t)
        ):
            return True
        return self._contents.unknown(t)

    def _unsure(self, t: torch.Tensor) -> bool:
        """Whether `t` is unknown, and no known value repeats in it either."""
        fill = self._contents.fill(t)
        return not fill.known if fill is not None else self.is_unknown(t)

    def _repeats_known(self, t: torch.Tensor) -> bool:
        """Whether a large tensor only repeats a small one whose contents are known: an expanded view."""
        if 0 not in t.stride() or t.numel() > WIDE_LIMIT:
            return False
        once = math.prod(n for n, step in zip(t.shape, t.stride(), strict=True) if step)
        return once <= FLOAT_LIMIT and not self._contents.unknown(t)

    def _leaves_device(self, op, args, to: torch.Tensor) -> None:
        source = args[1] if op.name == "aten::copy_" else args[0]
        if not isinstance(source, torch.Tensor) or not source.is_cuda:
            return
        fill = self._contents.fill(source)
        unknown = self._unsure(source)
        if unknown:
            self.assumptions.read(
                "the script copied a GPU tensor to the CPU, whose values oomph does not compute"
            )
        if (
            fill is None
            and source.dtype == to.dtype
            and source.is_contiguous()
            and to.is_contiguous()
        ):
            return  # the very bytes
        # A kernel would have put them in order, or converted them, on the device.
        if unknown and not self._computable(source):
            to.zero_()
        elif source.layout is torch.strided:
            to.copy_(self._host(source))

    # ---- operators that need help ----

    def _item(self, func, op, args, kwargs):
        if not isinstance(args[0], torch.Tensor):
            return args[0]  # of a Python number's tensor, which graphs save, the number comes here
        if self.is_unknown(args[0]):
            floating = args[0].is_floating_point() or args[0].is_complex()
            why = None if floating else self._contents.why(args[0])
            if floating and lbfgs.asks():
                self.assumptions.read(lbfgs.ASSUMED)
                self._losses -= 1.0
                return self._losses
            if why == lbfgs.ASSUMED:
                self.assumptions.read(why)
                return func(*args, **kwargs)
            if floating:
                what = "it got zero"
            elif why is not None:
                what = why
            elif args[0].dtype == torch.bool:
                what = f"{self.unknown} of the comparisons were taken as true"
            else:
                what = f"it got one by the rule --unknown {self.unknown}"
            self.assumptions.read(
                f"the script read a GPU value, which oomph does not compute: {what}"
            )
            if floating:
                func(*args, **kwargs)
                return 0j if args[0].is_complex() else 0.0
        return func(*args, **kwargs)

    def _fresh(self, func, op, args, kwargs):
        """`torch.tensor(…, device="cuda")` copies its values without passing here."""
        t = args[0]
        if t.is_cuda:
            self._contents.forget_storage(base_pointer(t))
        return t

    def _resize(self, func, op, args, kwargs):
        """What a tensor had goes with it where its memory becomes longer, which may be elsewhere."""
        t = args[0]
        before = base_pointer(t) if t.is_cuda else 0
        out = func(*args, **kwargs)
        if t.is_cuda and (now := base_pointer(t)) != before:
            self._contents.move_storage(before, now)
            if before in self._wide:
                self._wide.add(now)
            else:
                self._wide.discard(now)
        return out

    def _equal(self, func, op, args, kwargs):
        # Numbers come as such where a graph compares its constants.
        a, b = (t if isinstance(t, torch.Tensor) else torch.as_tensor(t) for t in args[:2])
        args = (a, b, *args[2:])
        unknown = [t for t in (a, b) if self._unsure(t)]
        if unknown and all(self._computable(t) and t.dtype == torch.bool for t in (a, b)):
            self.assumptions.read(f"uncomputed flags were compared by the rule {self.unknown!r}")
        elif unknown:
            self.assumptions.read("unknown tensors were assumed to be equal")
            return op.name == "aten::allclose" or a.shape == b.shape
        if a.is_cuda:
            _wait()
        return func(*self._to_cpu(list(args)), **kwargs)

    def _check_errors(self, func, op, args, kwargs):
        """Whether a matrix was singular, …: the operator reads it back, and raises."""
        status = args[0]
        if status.is_cuda and not self.is_unknown(status):
            _wait()
            return func(*self._to_cpu(list(args)), **kwargs)
        return self._run(func, op, args, kwargs)

    def _normal(self, func, op, args, kwargs):
        """The operator asks whether all standard deviations are positive, and raises."""
        std = args[1] if len(args) > 1 else kwargs.get("std")
        if isinstance(std, torch.Tensor) and std.is_cuda and std.numel():
            fine = self.is_unknown(std) or bool((cpu_alias(std) >= 0).all())
            for _ in range(2):  # it asks twice
                self._gpu.oomph_vgpu_answer(int(fine))
        return self._run(func, op, args, kwargs)

    def _segment_reduce(self, func, op, args, kwargs):
        """The operator asks for the shortest segment, and whether they have the length of what it reduces, and raises."""
        if args[0].is_cuda and isinstance(kwargs.get("lengths"), torch.Tensor):
            for answer in (0, 1):
                self._gpu.oomph_vgpu_answer(answer)
        return self._run(func, op, args, kwargs)

    def _all_true(self, func, op, args, kwargs):
        """PyTorch's own checks of values end in it, such as those of `torch.distributions`: unknown values pass."""
        out = self._run(func, op, args, kwargs)
        if out.is_cuda and self.is_unknown(args[0]):
            self.assumptions.read("a check of uncomputed values was assumed to pass")
            cpu_alias(out).fill_(True)
        return out

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
        if mask.is_cuda and self._unsure(mask):
            rule = self._contents.why(mask) or f"rule {self.unknown!r}"
            self.assumptions.add("shape", f"a size depends on unknown values: {rule}", user_line())
        fill = self._contents.fill(mask)
        if fill is not None:
            return fill.count(mask), None
        known = self._known_mask(mask)
        if known is None:
            return int(mask.numel() * RULES[self.unknown]), None
        positions = known.nonzero()
        return positions.shape[0], positions

    def _nonzero(self, func, op, args, kwargs):
        mask = args[0]
        if not mask.is_cuda:
            return func(*args, **kwargs)
        count, positions = self._count(mask)
        # The operator counts on the device and reads the count; with the answer it continues normally.
        self._gpu.oomph_vgpu_begin(0, _by_engine())
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
                positions = spread(mask.shape, count)
            cpu_alias(out).copy_(positions)
            if self._unsure(mask):
                self._lose([out], False)
            else:
                self._contents.learn(out)
        return out

    def _index(self, func, op, args, kwargs):
        """Indexing by a mask: the mask becomes positions first, as the operator does inside."""
        indices = args[1]
        masks = [
            i
            for i in indices
            if i is not None and i.dtype in (torch.bool, torch.uint8) and i.is_cuda
        ]
        if not masks:
            return self._run(func, op, args, kwargs)
        if op.name != "aten::index" and len(masks) == len(indices):
            value = args[2]
            if value.numel() == 1 and not value.is_cuda:
                return self._run(func, op, args, kwargs)  # fills by the mask itself
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
            op = self._meet(func)
        if op.special is not None:
            return op.special(func, op, args, kwargs)
        return self._run(func, op, args, kwargs)

    def _masked_select(self, func, op, args, kwargs):
        values, mask = args[:2]
        if not (values.is_cuda and mask.is_cuda):
            return self._run(func, op, args, kwargs)
        if func is _aten.masked_select.out:
            found = self._part(_aten.masked_select.default, values, mask)
            self._part(_aten.resize_.default, kwargs["out"], found.shape)
            self._part(_aten.copy_.default, kwargs["out"], found)
            return kwargs["out"]
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
        inputs = [t for t in tensors(args, []) if t.is_cuda]
        if not inputs:
            return func(*args, **kwargs)
        _wait()
        unknown = [t for t in inputs if self._unsure(t)]
        if unknown:
            rule = self._contents.why(unknown[0]) or f"rule {self.unknown!r}"
            self.assumptions.add(
                "shape", f"the size of {op.name} depends on unknown values: {rule}", user_line()
            )
        if all(self._computable(t) and not t.is_floating_point() for t in unknown):
            result = func(
                *self._to_cpu(list(args)), **{k: self._to_cpu(v) for k, v in kwargs.items()}
            )
        else:
            result = sized_by_rule(func, op, args, kwargs, RULES[self.unknown])

        def place(value):
            if isinstance(value, torch.Tensor):
                placed = torch.empty_like(value, device=inputs[0].device)
                if self._computable(placed):
                    cpu_alias(placed).copy_(value)
                    self._contents.learn(placed)
                    if unknown:
                        self._lose([placed], True)
                return placed
            return type(value)(place(item) for item in value)

        return place(result)

    def _coalesce(self, func, op, args, kwargs):
        """How many entries of a sparse matrix have an index of their own, the operator reads back."""
        matrix = args[0]
        if not matrix.is_cuda or matrix._nnz() < 2:
            return func(*args, **kwargs)
        count, known = self._distinct(matrix)
        self._gpu.oomph_vgpu_answer(count)
        self._gpu.oomph_vgpu_begin(0, _by_engine())
        try:
            out = func(*args, **kwargs)
        finally:
            self._gpu.oomph_vgpu_end()
        self._settle(func, op, args, kwargs, out)
        placed = out._indices()
        if self.is_unknown(placed) and known is not None and placed.shape == known.shape:
            cpu_alias(placed).copy_(known)
            self._contents.learn(placed)
        return out

    def _on_cpu_alone(self, func, op, args, kwargs):
        """Operators that fail where what they read back is not what their kernels would have written: only their results' memory is here."""
        if not any(t.is_cuda for t in tensors(args, [])):
            return func(*args, **kwargs)
        if op.mutated:
            _wait()
            changed = _changed(op, args, kwargs)
            out = tuple(changed) if len(changed) > 1 else changed[0]
        else:
            found = func(
                *self._to_cpu(list(args)), **{k: self._to_cpu(v) for k, v in kwargs.items()}
            )
            out = _like_on_gpu(found, tensors(args, [])[0].device)
        self._settle(func, op, args, kwargs, out)
        return out

    def _to_sparse(self, func, op, args, kwargs):
        """The operator reads back how many entries are not zero."""
        dense = args[0]
        if not dense.is_cuda or dense.layout is not torch.strided:
            return self._run(func, op, args, kwargs)
        if self.is_unknown(dense):
            self.assumptions.add("shape", "a sparse tensor of unknown values has none", user_line())
        else:
            made = func(cpu_alias(dense), *self._to_cpu(args[1:]), **kwargs)
            for _ in range(2):  # compressed ones and those with dense dimensions count twice
                self._gpu.oomph_vgpu_answer(parts(made)[-2].shape[-1])
        return self._run(func, op, args, kwargs)

    def _distinct(self, matrix: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """How many entries of a sparse tensor have an index of their own, and their indices if known."""
        indices, sizes = matrix._indices(), matrix.shape[: matrix.sparse_dim()]
        if not self._computable(indices) or self.is_unknown(indices):
            self.assumptions.add(
                "shape", "a sparse tensor is assumed to name no entry twice", user_line()
            )
            return matrix._nnz(), None
        flat = torch.zeros(matrix._nnz(), dtype=torch.int64)
        for row, size in zip(cpu_alias(indices), sizes, strict=True):
            flat = flat.mul_(size).add_(row)
        flat = flat.unique()
        return len(flat), torch.stack(torch.unravel_index(flat, sizes))

    def _product(self, func, op, args, kwargs):
        """A product with a sparse matrix coalesces it first."""
        for t in args[:3]:
            if isinstance(t, torch.Tensor) and t.is_sparse and t.is_cuda and not t.is_coalesced():
                self._gpu.oomph_vgpu_answer(self._distinct(t)[0])
        out, nowhere_known = kwargs.get("out"), self._contents.nowhere_known
        if (
            out is None
            or self._budget is not None
            or self._as_zeros
            or not (nowhere_known(args[PRODUCTS[op.name]]) and nowhere_known(out))
        ):
            return self._run(func, op, args, kwargs)
        # What compiled code does for each layer: nothing was known before, and nothing is afterwards.
        self._gpu.oomph_vgpu_begin(op.keeps, _by_engine())
        try:
            func(*args, **kwargs)
        finally:
            self._gpu.oomph_vgpu_end()
        with untraced():
            if self.captures():
                places = {base_pointer(out)}
                self._graphs.computed -= places
                self._graphs.lose(places)
            zero([out])
            self._contents.lose(out)
        return out

    def _matrix_exp(self, func, op, args, kwargs):
        """Its parts come here: it sorts matrices by their norms, and each must get some degree."""
        if not args[0].is_cuda:
            return func(*args, **kwargs)
        if self.is_unknown(args[0]):
            self.assumptions.add(
                "value", f"{op.name} was given unknown matrices: of norm zero", user_line()
            )
        before, self._as_zeros = self._as_zeros, True
        try:
            with dispatch.parts_included():
                out = func._op_dk(torch._C.DispatchKey.CUDA, *args, **kwargs)
        finally:
            self._as_zeros = before
        self._settle(func, op, args, kwargs, out)
        return out

    def _flatten(self, func, op, args, kwargs):
        """Weights of a recurrent layer move into one buffer, and are views of it from now on."""
        weights = args[0]
        known = self._budget is not None and not any(self.is_unknown(t) for t in weights)
        values = [cpu_alias(t).clone() for t in weights] if known else []
        out = self._run(func, op, args, kwargs)
        if known and _write([cpu_alias(t) for t in weights], values):
            self._learn([out], True)
        return out

    def _dropout_state(self, func, op, args, kwargs):
        """What only cuDNN reads. Layers get it in evaluation, too, and what they give then follows from the rest."""
        out = self._run(func, op, args, kwargs)
        self._learn([out], True)
        return out

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
            _wait()
            kwargs = dict(kwargs, output_size=int(cpu_alias(args[0]).sum()))
        return self._run(func, op, args, kwargs)


def _generator(given, out) -> torch.Generator:
    """The one that an operator was given, or its device's."""
    for value in given:
        if isinstance(value, torch.Generator):
            return value
    device = next((t.device.index for t in tensors(out, []) if t.is_cuda), 0)
    return torch.cuda.default_generators[device]


def _changed(op, args, kwargs) -> list[torch.Tensor]:
    """The tensors that an operator changes in place."""
    found: list[torch.Tensor] = []
    if op.hidden is not None and not args[op.hidden]:
        return found
    for index, name, kwarg_only in op.mutated:
        tensors(kwargs.get(name) if kwarg_only or index >= len(args) else args[index], found)
    return found


def _alias_of(t: torch.Tensor) -> torch.Tensor:
    """`cpu_alias`, also of sparse and nested tensors."""
    if t.is_nested:
        about = t._nested_tensor_size(), t._nested_tensor_strides()
        offsets = t._nested_tensor_storage_offsets()
        return torch._nested_view_from_buffer(cpu_alias(t.values()), *about, offsets)
    if t.layout is torch.strided:
        return cpu_alias(t)
    places = map(cpu_alias, parts(t))
    if t.layout is torch.sparse_coo:
        make = _aten._sparse_coo_tensor_unsafe.default
        return make(*places, t.shape, is_coalesced=t.is_coalesced())
    make = _aten._sparse_compressed_tensor_unsafe.default
    return make(*places, t.shape, dtype=t.dtype, layout=t.layout)


def _changes_sparse(op, args, kwargs) -> bool:
    """Whether one of the tensors that an operator changes is sparse."""
    given = (
        kwargs.get(name) if kwarg_only or index >= len(args) else args[index]
        for index, name, kwarg_only in op.mutated
    )
    return any(isinstance(t, torch.Tensor) and t.layout is not torch.strided for t in given)


def _made(changed: list[torch.Tensor], out) -> list[torch.Tensor]:
    """The results of an operator that are not what it changed."""
    found = tensors(out, [])
    if not changed:
        return found
    places = {t.data_ptr() for t in changed}
    return [t for t in found if t.data_ptr() not in places]


def _draw(op, drawn, outs, args, kwargs) -> bool:
    """Write what an operator drew to `outs`."""
    if not any(t.numel() for t in outs):
        return True  # nothing is drawn
    kept = {name: v for name, v in kwargs.items() if name not in _PLACES and v is not None}
    DRAWN[op.name](drawn, outs, *args, **kept)
    return True


def _like_on_gpu(value, device: torch.device):
    """Tensors in memory of `device`, without contents, for results of the CPU."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return tuple(_like_on_gpu(item, device) for item in value)


# Arguments that say of which kind a result is.
_KINDS = {"dtype", "layout", "device", "pin_memory", "memory_format"}
# Those that say it where it is of that kind already.
_PLACES = {"generator", "out", "dtype", "layout", "device", "pin_memory"}


def _wait() -> None:
    """As an operator that reads a value back: `torch.cuda.set_sync_debug_mode` may have PyTorch raise."""
    torch.cuda.current_stream().synchronize()


def _write(outs, results) -> bool:
    """Put results of the CPU where device memory stands; False if they are of other shapes.

    What one of them leaves empty, behind the first, is no reason: statistics of a batch that is only evaluated.
    """
    for at, (to, value) in enumerate(zip(outs, results, strict=False)):
        if to is not None:
            if to.shape == value.shape:
                to.copy_(value)
            elif at == 0:
                return False
            elif value.numel() == 0 < to.numel():
                to.zero_()
            elif to.numel():
                return False
    return True


def _widened(value):
    """Half precision as single: a CPU without half-precision instructions is hundreds of times slower."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
