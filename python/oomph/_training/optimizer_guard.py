"""An atomic optimizer step: it happens completely or not at all, whatever allocation fails.

`optimizer.step` changes parameters and moments in place while it allocates: an error in the middle
leaves them half updated. Four mechanisms prevent that:

- *journal*: copy what the step may change to the CPU first, and restore it after an error. Used
  for the first step, which creates the state, and whenever the next mechanism is unavailable.
- *reserve*: a step needs the same memory each time, so it is measured once. Before each later step
  as much is allocated, in blocks of the parameters' sizes, and returned to the cache: a failure happens
  there, before anything has changed, and the step itself finds its memory in the cache.
- *chunks*: after an error, step the parameters in groups, so that the temporaries of multi-tensor
  optimizers are only as large as a group's. Each parameter's update is the same to the bit.
- *offload*: if not even single parameters can be stepped, `rescue` may call `offload`, which keeps
  the state in host memory (`oomph.levers.optimizer_on_cpu`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from oomph._older_python import zip
from oomph._training.errors import CannotFit, StateLost, is_out_of_memory
from oomph._training.memory_model import GpuMemory
from oomph._training.release import clear_error, release_caches
from oomph.levers.optimizer_on_cpu import OptimizerOnCpu, bytes_on_gpu

STATE_LEVER = OptimizerOnCpu.name
"""The lever that a guard can apply between two steps."""

CHUNKS = (1, 4, 16, 64, 256)
"""Numbers of parameter groups to try in turn, before each parameter steps alone."""

HELD = 32 << 20
"""A reserve of at most so many bytes is kept between steps."""

RESERVE_MARGIN = 1.25
"""The reserve is a step's measured need times this factor, since the allocator may fragment it."""


class OptimizerGuard:
    """Steps `optimizer` (of `torch.optim` or similar); see the module's docstring.

    `protect`: "auto" as described; "always" journals each step, which costs a copy of parameters
    and state to the CPU per step; "never" only steps.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, gpu_memory: GpuMemory, protect: str
    ) -> None:
        """Measures nothing yet."""
        if protect not in ("auto", "always", "never"):
            raise ValueError(f'protect: expected "auto", "always" or "never"; found {protect!r}')
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "LBFGS evaluates the loss several times a step and cannot be stepped here; "
                "use an optimizer whose step() takes no closure"
            )
        self.optimizer = optimizer
        self._gpu_memory = gpu_memory
        self._protect = protect
        # Other optimizers may count steps for all parameters together.
        self._divisible = type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]
        self._chunks = 1
        # Bytes that a step takes from the pools of large and small blocks; None before the first.
        self._need: tuple[int, int] | None = None
        self._settled = False
        self._held: list[torch.Tensor] | None = None
        self._streamed: Callable[[], Any] | None = None
        self.rescue: Callable[[str], bool] | None = None
        """Called with the error's text when a step does not fit in any way; returns True to try again."""

    def step(self, how: Callable[[], Any]) -> None:
        """Make the step by calling `how`, the optimizer's own method.

        Raises `CannotFit`, with everything as before, if not even single parameters can be
        stepped, and `StateLost` if an error occurred although memory had been reserved.
        """
        how = self._streamed or how
        if self._protect == "never" or (self._protect == "auto" and not self._gpu_memory.measures):
            failure = self._attempt(how, self._chunks)
            if failure:
                raise StateLost(
                    f"memory ran out inside optimizer.step, which was not protected: {failure} "
                    'Parameters may be partly updated. Restart from a checkpoint; protect="always" '
                    "makes such an error recoverable."
                )
            return
        if self._protect == "auto" and self._is_reserved():
            if not self._settled:
                self._gpu_memory.begin()
            failure = self._attempt(how, self._chunks)
            if not failure and not self._settled:
                # The step that created the state needed that much more than those that follow.
                self._need, self._settled = self._gpu_memory.peaks_above_start(), True
            if not failure:
                self._hold()
            if failure:
                raise StateLost(
                    "memory ran out inside optimizer.step although its memory had been reserved: "
                    f"{failure} Another process may have taken it. Parameters may be partly "
                    "updated. Restart from a checkpoint."
                )
            return
        self._journaled(how)

    @property
    def is_offloaded(self) -> bool:
        """Whether the state is kept in host memory."""
        return self._streamed is not None

    def coming(self) -> float:
        """Bytes of state that the first step will make on the GPU; 0 once there is any."""
        if self.optimizer.state or self.is_offloaded:
            return 0.0
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        count: int = sum(p.numel() for p in parameters if p.requires_grad)
        return state_bytes_per_element(self.optimizer) * count

    def state_bytes(self) -> int:
        """Bytes of state that `offload` would keep off the GPU."""
        return bytes_on_gpu(self.optimizer) or int(self.coming())

    def offload(self) -> None:
        """Keep the optimizer's state in host memory from now on, except during its step.

        Raises `CannotApply` for optimizers whose update of a parameter may depend on others.
        """
        if self._streamed is not None:
            return
        lever = OptimizerOnCpu()
        streamed = lever.through(self.optimizer)
        lever.evict(self.optimizer)
        self._streamed = streamed
        self._chunks, self._need, self._settled, self._held = 1, None, False, None

    def _is_reserved(self) -> bool:
        """Whether the next step finds its memory in the allocator's cache."""
        if self._need is None or not self._gpu_memory.caches:
            return False
        large, small = (int(size * RESERVE_MARGIN) for size in self._need)
        blocks = list(self._blocks(large))
        self._held = self._held or self._gpu_memory.reserve(blocks, small)
        if self._held is None:
            release_caches()
            self._held = self._gpu_memory.reserve(blocks, small)
        found, self._held = self._held is not None, None
        return found

    def _hold(self) -> None:
        """Keep a small reserve until the next step: where memory is full, making it empties the cache."""
        if self._need is not None and self._gpu_memory.caches:
            large, small = (int(size * RESERVE_MARGIN) for size in self._need)
            if 0 < large + small <= HELD:
                self._held = self._gpu_memory.reserve(list(self._blocks(large)), small)

    def _blocks(self, size: int) -> Iterator[int]:
        """`size` bytes in blocks as large as parameters, as the temporaries of steps are.

        In one piece they would seldom be there: the cache consists of what activations left.
        """
        sizes = [p.numel() * p.element_size() for p in _stepped(self.optimizer)]
        for block in itertools.cycle([s for s in sizes if s > 1 << 20] or [size]):
            if size <= 0:
                return
            yield min(size, block)
            size -= block

    def _journaled(self, how: Callable[[], Any]) -> None:
        journal = self._write_journal()
        failure = self._in_groups(how, journal)
        if failure and self.rescue is not None and self.rescue(failure):
            # The tensors sent to the host are not those of the journal.
            journal = self._write_journal()
            failure = self._in_groups(self._streamed or how, journal)
        if not failure:
            return
        raise CannotFit(
            f"the optimizer's step does not fit: {failure} Its state and temporaries are too "
            "large; an 8-bit or offloaded optimizer, or sharding, makes them smaller.",
            failure,
        )

    def _in_groups(self, how: Callable[[], Any], journal: Journal) -> str:
        """Step at once, then in groups; the last error's text if none of it fits."""
        failure = ""
        for chunks in self._sizes():
            had_state = len(self.optimizer.state)
            self._gpu_memory.begin()
            failure = self._attempt(how, chunks)
            if not failure:
                self._chunks = chunks
                self._need = self._gpu_memory.peaks_above_start()
                self._settled = len(self.optimizer.state) == had_state
                return ""
            journal.restore()
            release_caches()
        return failure

    def _write_journal(self) -> Journal:
        try:
            return Journal(self.optimizer)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            clear_error(error)
        release_caches()
        return Journal(self.optimizer)

    def _sizes(self) -> list[int]:
        if not self._divisible or self._streamed is not None:
            return [1, 1]
        count = sum(1 for _ in _stepped(self.optimizer))
        # Try the first size twice: the error may have been transient.
        sizes = [self._chunks, *(n for n in CHUNKS if self._chunks <= n < count)]
        return [*sizes, count] if count > 1 else [1, 1]

    def _attempt(self, how: Callable[[], Any], chunks: int) -> str:
        """Step; the error's text if memory ran out, "" if all went well."""
        try:
            if chunks <= 1:
                how()
            else:
                for _ in _in_turn(self.optimizer, chunks):
                    how()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = first_line(error)
            clear_error(error)
            return failure
        return ""


def first_line(error: BaseException) -> str:
    """The first sentence of an error's text: references to the error itself keep tensors alive."""
    return str(error).strip().split("\n")[0][:300]


def _stepped(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield p


def _in_turn(optimizer: torch.optim.Optimizer, chunks: int) -> Iterator[None]:
    """Iterates over groups of parameters; only the current group has gradients."""
    parameters = list(_stepped(optimizer))
    gradients = [p.grad for p in parameters]
    size = -(-len(parameters) // chunks)
    try:
        for start in range(0, len(parameters), size):
            for index, p in enumerate(parameters):
                p.grad = gradients[index] if start <= index < start + size else None
            yield
    finally:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient


class Journal:
    """What an optimizer's step may change, on the CPU: parameters with gradients, and their state."""

    @torch.no_grad()
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy it now."""
        self._optimizer = optimizer
        self._parameters = [(p, _to_cpu(p)) for p in _stepped(optimizer)]
        self._gradients = [p.grad for p, _ in self._parameters]
        self._state = [
            (p, {key: (value, _save(value)) for key, value in state.items()})
            for p, state in optimizer.state.items()
        ]
        self._groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, into the same tensors; state made since then is dropped."""
        for (p, saved), gradient in zip(self._parameters, self._gradients, strict=True):
            p.data.copy_(saved)
            p.grad = gradient
        state = self._optimizer.state
        kept = {id(p) for p, _ in self._state}
        for p in [p for p in state if id(p) not in kept]:
            del state[p]
        for p, entries in self._state:
            entry = state[p]
            for key in [key for key in entry if key not in entries]:
                del entry[key]
            for key, (value, saved) in entries.items():
                if isinstance(value, torch.Tensor):
                    value.copy_(saved)
                    entry[key] = value
                else:
                    entry[key] = saved
        for group, saved_group in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(copy.deepcopy(saved_group))


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.cpu() if tensor.device.type != "cpu" else tensor.clone()


def _save(value: Any) -> Any:
    return _to_cpu(value) if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def state_bytes_per_element(optimizer: torch.optim.Optimizer) -> float:
    """Bytes of state that a step of this optimizer makes for each element of a parameter.

    Measured with an optimizer of the same class and settings that steps a small parameter on the CPU. Zero
    if that is not possible.
    """
    try:
        probe = torch.nn.Parameter(torch.zeros(64, 64))
        settings = {k: v for k, v in optimizer.defaults.items() if k in _arguments(optimizer)}
        settings.pop("fused", None)
        settings.pop("capturable", None)
        small = type(optimizer)([probe], **settings)
        probe.grad = torch.zeros_like(probe)
        small.step()
        values: Sequence[Any] = list(small.state[probe].values())
        size = sum(
            v.numel() * v.element_size()
            for v in values
            if isinstance(v, torch.Tensor) and v.numel() > 1
        )
        return size / probe.numel()
    except Exception:  # any optimizer may refuse; a guess would be no better than nothing
        return 0.0


def _arguments(optimizer: torch.optim.Optimizer) -> set[str]:
    code = type(optimizer).__init__.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
