"""Large random tensors of the host, mostly weights on their way to the GPU, are drawn when somebody looks at them.

Drawing the weights of a model takes longer than all of the rest of its dry run, and memory of the host; what a virtual GPU gets
of them is not kept anyway. So a fill with random numbers, and what else happens to the tensor in place, waits until an operator
reads it, or somebody asks for its memory. The generator goes on as if the numbers had been drawn; when they are, they are the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph._virtual_gpu.device_memory import base_pointer
from oomph._virtual_gpu.library import library
from oomph._virtual_gpu.limits import FLOAT_LIMIT
from oomph._virtual_gpu.operators import POINTWISE, Operator, tensors

DRAWS = {"aten::normal_", "aten::uniform_"}
"""They fill all of a tensor, whatever it was before, with numbers of the generator."""
_OVERWRITES = {"aten::zero_", "aten::fill_"}
"""So do these, without numbers of it."""
_LANES = 16
"""`normal_` draws so many elements at a time, those at the end once more (`normal_fill` of ATen)."""
_SWEEP = 64
"""After so many fills, those of tensors that are gone are forgotten."""
_ESCAPES = (
    "__array__", "__deepcopy__", "__dlpack__", "__reduce_ex__", "_typed_storage", "data_ptr", "numpy", "share_memory_", "storage",
    "tolist", "untyped_storage",
)  # fmt: skip
"""Methods of a tensor by which its memory is read without an operator."""


class _Fill:
    """What has happened to the memory of one tensor, which `steps` keep alive: none of it is done."""

    __slots__ = ("state", "steps")

    def __init__(self, state: torch.Tensor | None) -> None:
        self.state = state
        """The generator's, before the first step."""
        self.steps: list[tuple[Any, tuple, dict]] = []

    def is_only_here(self) -> bool:
        """Whether nobody else has the memory."""
        tensors = {id(args[0]) for _, args, _ in self.steps}
        storage = _untyped_storage(self.steps[0][1][0])
        # Python's object for it is one more owner.
        return bool(torch._C._storage_Use_Count(storage._cdata) <= len(tensors) + 1)  # type: ignore[attr-defined]


class HostDraws:
    """Fills that wait, by where the memory of their tensors begins."""

    def __init__(self, aside: Callable[[], Any]) -> None:
        """Nothing waits. In the context `aside()` gives, operators do not come to the value layer."""
        self._aside = aside
        self._fills: dict[int, _Fill] = {}
        self._known: dict[tuple[str, torch.dtype], bool] = {}
        self._since = 0
        self.taken = False
        """Whether some went to the GPU since tensors that are gone were last forgotten: the host's are, mostly."""
        self._lock = threading.RLock()
        self._originals: dict[str, Any] = {}
        os.register_at_fork(before=self.draw_all)

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._fills)

    def waits(self, t: torch.Tensor) -> bool:
        """Whether what is in the memory of `t` has yet to be drawn."""
        if t.device.type != "cpu" or t.layout is not torch.strided:
            return False
        try:
            return base_pointer(t) in self._fills
        except RuntimeError:
            return False  # it has none: it is traced

    def postpone(self, func: Any, op: Operator, args: tuple, kwargs: dict) -> bool:
        """Whether `func`, which changes `args[0]` in place, is done later; False if it is to be done now."""
        t, name = args[0], op.name
        elementwise = name in DRAWS or name in _OVERWRITES or op.repeats is POINTWISE
        if not elementwise or tensors((*args[1:], *kwargs.values()), []):
            return False
        if kwargs.get("generator") is not None or len(args) > 3:
            return False
        with self._lock:
            pointer = base_pointer(t)
            if name not in DRAWS:
                found = self._fills.get(pointer)
                if found is None:
                    return False
                if name in _OVERWRITES and self._is_whole(t):
                    found = self._fills[pointer] = _Fill(None)
                found.steps.append((func, (t.detach(), *args[1:]), kwargs))
                return True
            if (
                t.numel() <= FLOAT_LIMIT
                or not self._is_whole(t)
                or not self._can_skip(func, name, t.dtype)
            ):
                self.draw(t)
                return False
            state = torch.get_rng_state()
            self._fills[pointer] = fill = _Fill(state)
            fill.steps.append((func, (t.detach(), *args[1:]), kwargs))
            self._skip(state.clone(), _draws(name, t))
            self._watch()
            self._since += 1
            if self._since >= _SWEEP:
                self.sweep()
            return True

    def draw(self, t: torch.Tensor) -> None:
        """Do what waits for `t`."""
        with self._lock:
            fill = self._fills.pop(base_pointer(t), None)
            if fill is not None:
                self._do(fill)
            if not self._fills:
                self._unwatch()

    def overwritten(self, t: torch.Tensor) -> None:
        """An operator is about to write all of `t`."""
        with self._lock:
            if self._is_whole(t):
                self._fills.pop(base_pointer(t), None)
            else:
                self.draw(t)

    def draw_all(self) -> None:
        """Do all that waits."""
        with self._lock:
            self.sweep()
            while self._fills:
                self._do(self._fills.popitem()[1])
            self._unwatch()

    def sweep(self) -> None:
        """Forget tensors that are gone."""
        with self._lock:
            self._since, self.taken = 0, False
            for pointer in [p for p, fill in self._fills.items() if fill.is_only_here()]:
                del self._fills[pointer]
            if not self._fills:
                self._unwatch()

    def _do(self, fill: _Fill) -> None:
        with self._aside(), torch.no_grad(), state_kept():
            if fill.state is not None:
                torch.set_rng_state(fill.state)
            for func, args, kwargs in fill.steps:
                func(*args, **kwargs)

    def _is_whole(self, t: torch.Tensor) -> bool:
        return t.is_contiguous() and t.nbytes == _untyped_storage(t).nbytes()

    def _skip(self, state: torch.Tensor, draws: int) -> None:
        library().oomph_vgpu_skip(base_pointer(state), draws)
        torch.set_rng_state(state)

    def _can_skip(self, func: Any, name: str, dtype: torch.dtype) -> bool:
        """Whether this PyTorch's `func` takes as many numbers as is thought here: tried once, for lengths with and without a rest."""
        known = self._known.get((name, dtype))
        if known is None:
            known = dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
            for length in (64, 1003) if known else ():
                trial = torch.empty(length, dtype=dtype, device="cpu")
                with state_kept():
                    before = torch.get_rng_state()
                    func(trial)
                    after = torch.get_rng_state()
                    self._skip(before, _draws(name, trial))
                    known = known and torch.equal(after, torch.get_rng_state())
            self._known[name, dtype] = known
        return known

    def _watch(self) -> None:
        """Draw before somebody reads a tensor's memory without an operator."""
        if self._originals:
            return
        for name in _ESCAPES:
            original = getattr(torch.Tensor, name)
            self._originals[name] = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, self._drawn_first(original))

    def _drawn_first(self, original: Any) -> Any:
        def read(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._fills and isinstance(t, torch.Tensor) and self.waits(t):
                self.draw(t)
            return original(t, *args, **kwargs)

        return read

    def _unwatch(self) -> None:
        for name, original in self._originals.items():
            if original is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
        self._originals.clear()


_untyped_storage: Any = torch._C.TensorBase.untyped_storage
"""PyTorch's own, which does not come to `_drawn_first`."""


def _draws(name: str, t: torch.Tensor) -> int:
    """How many numbers of 32 bits `name` draws to fill `t`."""
    count = t.numel()
    if name == "aten::normal_" and count % _LANES:
        count += _LANES
    return count * (2 if t.dtype is torch.float64 else 1)


@contextlib.contextmanager
def state_kept() -> Iterator[None]:
    """The state of the generator for the CPU is afterwards what it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
