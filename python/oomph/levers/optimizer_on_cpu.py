"""Keeps the optimizer's state in host memory except during its step."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optim

from oomph._older_python import zip
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job
from oomph.levers._shared.lbfgs_history import as_lists, keep_on_host
from oomph.levers._shared.parameter_steps import (
    FEWEST,
    AroundStep,
    bytes_at_once,
    fills_with_zeros,
    is_known,
    only_per_parameter,
    step_only,
    steps_by_element,
    steps_by_rows,
)
from oomph.levers._shared.streams import BothWays, aligned

_Path = tuple[Any, ...]
_Entry = tuple[torch.Tensor, Any, Any, _Path, torch.Tensor]
"""A parameter, what holds a part of its state, its place there and from the top, and that part."""


class OptimizerOnCpu(Lever):
    """Keeps the optimizer's state in pinned host memory, and streams it through the GPU.

    Needs: an optimizer whose update of a parameter depends on that parameter alone, and host memory
    for its state, up to twice (PyTorch rounds pinned memory to powers of two). Changes: at a step
    the state is copied in parts while other parts compute. Of a parameter with a sparse gradient
    only the rows that the gradient has are copied. Results: the same, on the same kernels.
    Its time is the state's bytes over the link's bandwidth, whatever the batch; with sparse
    gradients that of the rows.
    """

    name = "optimizer_on_cpu"

    def __init__(self, percent: int = 100) -> None:
        """`percent`: how much of the parameters has its state on the host, by bytes; the largest parameters come first."""
        super().__init__()
        if not 0 < percent <= 100:
            raise self.refuse(f"percent must be from 1 to 100, not {percent}")
        self.percent = percent
        self._staying: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, set[int]]] = (
            weakref.WeakKeyDictionary()
        )
        """How many parameters an optimizer had, and the `id` of each whose state stays on the GPU."""
        self.streams = BothWays()
        self.shared: dict[int, _Place] = {}
        """Where states on the host are that share a buffer with others, by `id`, as long as they live."""
        self._around_step = AroundStep(self._step)
        self._leaving: deque[_State] = deque()
        """The states that stepped last, on their way to the host."""
        self._before: tuple[int, ...] = ()
        """The `id` of each parameter that stepped last in the backward pass that runs."""
        self._after: dict[tuple[int, ...], list[weakref.ref[torch.Tensor]]] = {}
        """The parameters that stepped together after others in the last backward pass, by the `id` of these."""
        self._coming: dict[tuple[int, ...], tuple[list[torch.Tensor], list[_State]]] = {}
        """What steps next in the backward pass, by the `id` of each parameter: its state is on its way."""
        self._at_once = 0
        self._came: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Optimizers that were made, or whose state was loaded, since the last call of a model."""

    def install(self, job: Job) -> None:
        """Intervene inside the hooks that PyTorch puts around an optimizer's step."""
        self._keeps_history = keep_on_host(self._count)
        job.on_optimizer.append(self._made)
        job.on_enter.append(self._enter)
        job.around_early_step.append(self._step_early)
        self._around_step.install()

    def _count(self) -> None:
        self.applied += 1

    def _made(self, optimizer: torch.optim.Optimizer) -> None:
        if self._keeps_history and isinstance(optimizer, torch.optim.LBFGS):
            optimizer.register_state_dict_post_hook(as_lists)
            return
        only_per_parameter(self, optimizer, steps=False)
        optimizer.register_load_state_dict_post_hook(self._loaded)
        # A checkpoint may be written before the last copies have arrived.
        optimizer.register_state_dict_pre_hook(lambda _: self.streams.complete())
        self._came.add(optimizer)  # Adagrad makes its state at once

    def _loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """A state that is loaded goes to where the parameters are."""
        self.evict(optimizer)
        self._came.add(optimizer)

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        """Lightning moves what it has loaded to the GPU once more."""
        while self._came:
            optimizer = self._came.pop()
            if bytes_on_gpu(optimizer):
                self.evict(optimizer)

    def through(self, optimizer: torch.optim.Optimizer) -> Any:
        """`optimizer.step`, streamed, for an existing optimizer; with its hooks.

        Raises `CannotApply` where an update of a parameter may depend on others.
        """
        only_per_parameter(self, optimizer)
        step = optim.Optimizer.profile_hook_step(
            self._around_step(inspect.unwrap(type(optimizer).step))
        )

        def streamed() -> Any:
            # A scheduler checks whether the step that it wrapped was called.
            optimizer._opt_called = True  # type: ignore[attr-defined]
            return step(optimizer)

        return streamed

    def evict(self, optimizer: torch.optim.Optimizer) -> None:
        """Send the state that is on GPUs to the host now, not after the next step."""
        state = _State(self, optimizer, [p for g in optimizer.param_groups for p in g["params"]])
        state.fetch()
        state.send()
        state.settle()

    def staying(self, optimizer: torch.optim.Optimizer) -> set[int]:
        """The `id` of each parameter whose state stays on the GPU."""
        if self.percent == 100:
            return set()
        groups = optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        known = self._staying.get(optimizer)
        if known is None or known[0] != count:
            every = [p for group in groups for p in group["params"]]
            every.sort(key=lambda p: -p.nbytes)
            most = sum(p.nbytes for p in every) * self.percent / 100
            before = itertools.accumulate((p.nbytes for p in every), initial=0)
            stay = {id(p) for p, held in zip(every, before, strict=False) if held >= most}
            known = self._staying[optimizer] = count, stay
        return known[1]

    def _step_early(
        self, optimizer: torch.optim.Optimizer, some: list[torch.Tensor], proceed: Any
    ) -> None:
        for p in some:
            if _is_by_rows(optimizer, p):
                rows = _Rows(optimizer, p)
                rows.step()
                self.applied += bool(rows.bytes)
        some = [p for p in some if not _is_by_rows(optimizer, p)]
        if not some:
            return
        if not self._before:
            every = [p for group in optimizer.param_groups for p in group["params"]]
            self._at_once = bytes_at_once(every)
        ids = tuple(map(id, some))
        if ids not in self._coming:
            self._drop()  # the order is another one than before
        _, moving = self._coming.pop(ids, (some, None))
        moving = moving or _moving(self, optimizer, some, self._at_once)
        # While the backward pass goes on, states of these before it leave, and those of the next ones come.
        self.applied += self._pass(moving, sum(state.bytes for state in moving) + self._at_once)
        if self._before:
            self._after[self._before] = [weakref.ref(p) for p in some]
        self._before = ids
        device = some[0].device
        ahead, following = 0, self._following(ids, device)
        while ahead < self._at_once and following:
            ids = tuple(map(id, following))
            if ids not in self._coming:
                self._coming[ids] = following, _moving(self, optimizer, following, self._at_once)
                self._coming[ids][1][0].fetch()
            ahead += min(sum(p.nbytes for p in following), self._at_once)
            following = self._following(ids, device)

    def _following(self, ids: tuple[int, ...], device: torch.device) -> list[torch.Tensor]:
        """The parameters that stepped after these in the last backward pass; none if that is not known, or where they are not there yet
        (`stream_trained`)."""
        found = [ref() for ref in self._after.get(ids, ())]
        return [] if any(p is None or p.device != device for p in found) else found  # type: ignore[return-value]

    def _drop(self) -> None:
        """What is on its way does not step next after all."""
        for _, states in self._coming.values():
            states[0].drop()
        self._coming.clear()

    def _settle(self, most: int = 0) -> None:
        """Until states of at most so many bytes are on their way to the host."""
        while self._leaving and (not most or sum(state.bytes for state in self._leaving) > most):
            self._leaving.popleft().settle()

    def _step(self, optimizer: torch.optim.Optimizer, _: Any) -> None:
        only_per_parameter(self, optimizer)
        self._settle()
        self._drop()
        self._before = ()
        rows = [_Rows(optimizer, p) for p in _by_rows(optimizer)]
        for one in rows:
            one.step()
        steps = [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and not _is_by_rows(optimizer, p)
        ]
        moved = self._pass(_moving(self, optimizer, steps, bytes_at_once(steps)))
        self._settle()
        if not is_known(optimizer):
            step_only(optimizer, set(), counts=True)
        self.applied += moved or any(one.bytes for one in rows)

    def _pass(self, moving: list[_State], leaving: int = 0) -> bool:
        """Step part after part, and whether any state moved. That of the last one, and before it so many bytes, are still on their way
        to the host."""
        for index, state in enumerate(moving):
            if index == 0 and not state.fetched:
                state.fetch()
            if index + 1 < len(moving):
                moving[index + 1].fetch()
            state.arrive()
            state.step()
            self._settle(leaving)
            state.send()
            self._leaving.append(state)
        return any(state.bytes for state in moving)

    def finish(self) -> None:
        """Report why nothing moved."""
        if not self.applied:
            self.add_note("no optimizer with state on a GPU stepped")


def _moving(
    lever: OptimizerOnCpu, optimizer: torch.optim.Optimizer, steps: list[torch.Tensor], at_once: int
) -> list[_State]:
    """The states of parameters that step, in parts of at most so many bytes as far as that is possible."""
    parts: list[_State] = []
    part: list[torch.Tensor] = []
    held = 0
    staying = lever.staying(optimizer)
    for p in steps:
        whole = p.nbytes <= at_once or id(p) in staying or not _can_be_sliced(optimizer, p)
        if part and (held + p.nbytes > at_once or not whole):
            parts.append(_State(lever, optimizer, part))
            part, held = [], 0
        if whole:
            part.append(p)
            held += p.nbytes
        else:
            parts += _slices(lever, optimizer, p, at_once)
    if part:
        parts.append(_State(lever, optimizer, part))
    return parts


def _can_be_sliced(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> bool:
    """Whether rows of a parameter may step one after the other, with the state that they have on the host."""
    known = optimizer.state.get(p, {}).values()
    return (
        steps_by_element(optimizer)
        and p.dim() > 0
        and len(p) > 1
        # Rows of a transposed weight lie apart, which fused steps refuse.
        and p.stride(0) == max(p.stride())
        and all(value.device.type == "cpu" for value in known if _has_rows_of(value, p))
    )


def _has_rows_of(value: Any, p: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == p.shape


def _by_rows(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Parameters of which only the rows step that their sparse gradients have."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and _is_by_rows(optimizer, p):
                yield p


def _is_by_rows(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> bool:
    grad = p.grad
    assert grad is not None
    return grad.layout is torch.sparse_coo and grad.sparse_dim() == 1 and steps_by_rows(optimizer)


def bytes_on_gpu(optimizer: torch.optim.Optimizer) -> int:
    """What `OptimizerOnCpu` would move to the host now."""
    return sum(
        value.nbytes
        for p, state in optimizer.state.items()
        for _, _, _, value in _held(state)
        if _moves(value, p) and value.device == p.device
    )


def _held(holder: Any, above: _Path = ()) -> Iterator[tuple[Any, Any, _Path, Any]]:
    """What a parameter's state holds, also in its lists and dictionaries (Shampoo's matrices, say): what holds it, its place
    there, its place from the top, and itself."""
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        if type(value) in (list, dict):
            yield from _held(value, (*above, key))
        else:
            yield holder, key, (*above, key), value


def _moves(state: Any, p: torch.Tensor) -> bool:
    """Whether this part of a parameter's state is a tensor worth moving."""
    return (
        type(state) is torch.Tensor
        and state.layout is torch.strided  # SGD's momentum of a sparse gradient is sparse
        and state.numel() > 1
        and p.device.type == "cuda"
    )


class _Place(NamedTuple):
    """Bytes of a buffer in pinned memory, in which a state is kept beside others."""

    buffer: torch.Tensor
    begin: int
    end: int
    """Where the next one begins."""


class _Run:
    """What is copied at once: a state, or several that follow each other in a buffer."""

    def __init__(self, host: torch.Tensor, here: torch.Tensor, count: int = 1) -> None:
        self.host, self.here, self.count = host, here, count
        self.back: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Those of its states that the optimizer's step left in place, on the host and here."""

    def leaving(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What to copy to the host, and from where."""
        return [(self.host, self.here)] if len(self.back) == self.count else self.back


class _State:
    """The state of some parameters, on its way to the GPU and back."""

    def __init__(
        self, lever: OptimizerOnCpu, optimizer: torch.optim.Optimizer, part: list[torch.Tensor]
    ) -> None:
        self.lever, self.optimizer, self.part = lever, optimizer, part
        self.runs: list[_Run] = []
        self.came: dict[tuple[int, _Path], tuple[torch.Tensor, torch.Tensor, _Run]] = {}
        """What came from the host, there and here."""
        self.events: dict[torch.device, Any] = {}
        self.on_device: list[torch.Tensor] = []
        self.bytes = 0
        self.fetched = False

    def step(self) -> None:
        """The optimizer's own step."""
        step_only(self.optimizer, {id(p) for p in self.part})

    def drop(self) -> None:
        """Its parameters do not step after all."""
        self.arrive()
        for p, holder, key, path, value in list(self._entries()):
            holder[key] = self.came.get((id(p), path), (value,))[0]

    def homes(self, new: list[_Entry]) -> list[torch.Tensor]:
        """Where states of parameters on one GPU go that were not on the host yet."""
        found = []
        # With the strides that memory has that PyTorch makes for them.
        like = [torch.empty_like(value, device="meta") for *_, value in new]
        for some, sizes in _together(like):
            if len(some) == 1:
                found.append(torch.empty_like(some[0], device="cpu", pin_memory=True))
                continue
            buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
            end = 0
            for one, size in zip(some, sizes, strict=True):
                begin, end = end, end + size
                # A view would be saved with the whole buffer.
                own = buffer.untyped_storage()[begin : begin + one.nbytes]
                host = torch.empty(0, dtype=one.dtype).set_(own, 0, one.shape, one.stride())
                self.lever.shared[id(host)] = _Place(buffer, begin, end)
                weakref.finalize(host, self.lever.shared.pop, id(host)).atexit = False
                found.append(host)
        return found

    def _entries(self) -> Iterator[_Entry]:
        staying = self.lever.staying(self.optimizer)
        for p in self.part:
            for holder, key, path, value in _held(self.optimizer.state.get(p, {})):
                if _moves(value, p) and id(p) not in staying:
                    yield p, holder, key, path, value

    def fetch(self) -> None:
        """Begin to copy the state to the GPU."""
        self.fetched = True
        self._make_room()
        for device in {p.device for p in self.part if p.device.type == "cuda"}:
            stream = self.lever.streams(device)[0]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for run in self.runs:
                    if run.here.device == device:
                        run.here.copy_(run.host, non_blocking=True)
            self.events[device] = stream.record_event()

    def _make_room(self) -> None:
        """Put the computing stream's own memory, free at this point of that stream, in the place of what is on the host."""
        placed: list[tuple[_Place, _Entry]] = []
        for entry in self._entries():
            p, holder, key, path, value = entry
            if value.device == p.device:
                continue
            place = self.lever.shared.get(id(value))
            if place is not None:
                placed.append((place, entry))
                continue
            here = holder[key] = torch.empty_like(value, device=p.device, pin_memory=False)
            self.runs.append(_Run(value, here))
            self.came[id(p), path] = value, here, self.runs[-1]
        for row in _rows(placed):
            (first, (p, *_)), (last, _) = row[0], row[-1]
            size = last.end - first.begin
            memory = torch.empty(size, dtype=torch.uint8, device=p.device)
            run = _Run(first.buffer[first.begin : last.end], memory, len(row))
            self.runs.append(run)
            typed = {dtype: memory.view(dtype) for dtype in {entry[-1].dtype for _, entry in row}}
            for place, (p, holder, key, path, value) in row:
                begin = (place.begin - first.begin) // value.itemsize
                here = typed[value.dtype].as_strided(value.shape, value.stride(), begin)
                holder[key] = here
                self.came[id(p), path] = value, here, run

    def arrive(self) -> None:
        """The computing stream waits for the state."""
        for device, event in self.events.items():
            torch.cuda.current_stream(device).wait_event(event)

    def send(self) -> None:
        """Begin to copy the state back."""
        for device in self.events:
            self.lever.streams(device)[1].wait_stream(torch.cuda.current_stream(device))
        leaving: list[tuple[torch.Tensor, torch.Tensor]] = []
        new: list[_Entry] = []
        for entry in self._entries():
            p, holder, key, path, value = entry
            self.bytes += value.nbytes
            came = self.came.get((id(p), path))
            if came is None or came[0].shape != value.shape or came[0].dtype != value.dtype:
                new.append(entry)
                continue
            host, here, run = came
            holder[key] = host
            if value is here:
                run.back.append((host, value))
            else:
                leaving.append((host, value))
        for run in self.runs:
            leaving += run.leaving()
        # Sizes are often powers of two, and so is then what many of one size take (`_together`).
        new.sort(key=lambda entry: -entry[-1].nbytes)
        for device in self.events:
            some = [entry for entry in new if entry[-1].device == device]
            for (_, holder, key, _, value), host in zip(some, self.homes(some), strict=True):
                holder[key] = host
                leaving.append((host, value))
        self.runs.clear()
        self.came.clear()
        self.on_device += [value for _, value in leaving]
        for device in self.events:
            with torch.cuda.stream(self.lever.streams(device)[1]):
                for host, value in leaving:
                    if value.device == device:
                        self._whole(host).copy_(value, non_blocking=True)
            self.events[device] = self.lever.streams(device)[1].record_event()

    def _whole(self, host: torch.Tensor) -> torch.Tensor:
        """A state on the host as a view of its buffer, which PyTorch keeps until a copy to it has ended."""
        place = self.lever.shared.get(id(host))
        if place is None:
            return host
        view = place.buffer[place.begin : place.end].view(host.dtype)
        return view.as_strided(host.shape, host.stride())

    def settle(self) -> None:
        """The GPU's memory may be used again once it has been copied."""
        for device, event in self.events.items():
            torch.cuda.current_stream(device).wait_event(event)
        self.on_device.clear()


def _together(states: list[torch.Tensor]) -> Iterator[tuple[list[torch.Tensor], list[int]]]:
    """States that share a buffer, with their bytes in it.

    PyTorch makes pinned memory of powers of two: a buffer must not take more of it than its states would apart. Copies of 4 MiB
    (`FEWEST`) take longer than the calls for them, and five such buffers fit into a segment of the GPU's allocator.
    """
    begin = 0
    while begin < len(states):
        sizes: list[int] = []
        held, alone, best = 0, 0, 1
        for one in itertools.islice(states, begin, None):
            sizes.append(aligned(one.nbytes))
            held += sizes[-1]
            alone += _power_of_two(sizes[-1])
            if held > FEWEST:
                break
            if _power_of_two(held) <= alone:
                best = len(sizes)
        yield states[begin : begin + best], sizes[:best]
        begin += best


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _rows(placed: list[tuple[_Place, _Entry]]) -> list[list[tuple[_Place, _Entry]]]:
    """States that follow each other in a buffer and go to the same GPU."""
    placed.sort(key=lambda one: (id(one[0].buffer), one[0].begin))
    rows: list[list[tuple[_Place, _Entry]]] = []
    end: tuple[Any, ...] = ()
    for place, entry in placed:
        device = entry[0].device
        if end != (id(place.buffer), place.begin, device):
            rows.append([])
        rows[-1].append((place, entry))
        end = id(place.buffer), place.end, device
    return rows


class _Slice(_State):
    """The state of some rows of a parameter. The optimizer steps a stand-in for them."""

    def __init__(
        self,
        lever: OptimizerOnCpu,
        optimizer: torch.optim.Optimizer,
        p: torch.Tensor,
        rows: slice,
        known: dict[str, Any],
    ) -> None:
        self.p, self.rows, self.known = p, rows, known
        self.some = p.detach()[rows].requires_grad_(p.requires_grad)
        super().__init__(lever, optimizer, [self.some])

    def fetch(self) -> None:
        """Begin to copy the rows' state to the GPU."""
        if self.known:
            self.optimizer.state[self.some] = {
                name: value[self.rows]
                if _has_rows_of(value, self.p)
                # Each slice counts the same step.
                else value.clone()
                if isinstance(value, torch.Tensor)
                else value
                for name, value in self.known.items()
            }
        super().fetch()

    def drop(self) -> None:
        """As there."""
        super().drop()
        self.optimizer.state.pop(self.some, None)

    def step(self) -> None:
        """The optimizer's own step for these rows."""
        assert self.p.grad is not None
        self.some.grad = self.p.grad[self.rows]
        try:
            step_only(self.optimizer, {id(self.some)}, {id(self.p): self.some})
        finally:
            self.some.grad = None

    def homes(self, new: list[_Entry]) -> list[torch.Tensor]:
        """The rows' places in the whole state, which has no lists (`steps_by_element`)."""
        return [self._home(name, value) for _, _, _, (name,), value in new]

    def _home(self, name: str, value: torch.Tensor) -> torch.Tensor:
        state = self.optimizer.state[self.p]
        if name not in state:
            pinned = self.p.device.type == "cuda"
            state[name] = torch.empty_like(
                self.p, dtype=value.dtype, device="cpu", pin_memory=pinned, requires_grad=False
            )
        return state[name][self.rows]

    def send(self) -> None:
        """Begin to copy the rows' state back, into the parameter's."""
        super().send()
        for name, value in self.optimizer.state.pop(self.some, {}).items():
            if not _has_rows_of(value, self.some):
                self.optimizer.state[self.p][name] = value
            elif not _moves(value, self.some) and value.device == self.p.device:
                self._home(name, value).copy_(value)  # a parameter on the CPU


def _slices(
    lever: OptimizerOnCpu, optimizer: torch.optim.Optimizer, p: torch.Tensor, at_once: int
) -> list[_State]:
    """A parameter's rows, at most so many bytes at a time as far as rows are that small."""
    count = min(len(p), -(-p.nbytes // at_once))
    known = {
        name: value
        if not isinstance(value, torch.Tensor) or _has_rows_of(value, p)
        else value.clone()
        for name, value in optimizer.state.get(p, {}).items()
    }
    bounds = [len(p) * i // count for i in range(count + 1)]
    return [
        _Slice(lever, optimizer, p, slice(begin, end), known)
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]


class _Rows:
    """The step of a parameter with a sparse gradient, in the rows that the gradient has.

    The optimizer steps a stand-in that consists of these rows, with their state. The rest of the state
    stays on the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, p: torch.Tensor) -> None:
        self.optimizer, self.p = optimizer, p
        self.bytes = 0

    def step(self) -> None:
        """Bring the rows, step, and take them back."""
        p = self.p
        assert p.grad is not None
        with torch.no_grad():
            grad = p.grad.coalesce()
            # Nobody computes the rows on a virtual GPU: there they may be any.
            rows, values = grad.indices()[0].clamp(0, len(p) - 1), grad.values()
            rows_on_host = (
                rows.cpu()
            )  # waits for the GPU, and so for what is on its way to the host
            some = p.index_select(0, rows).requires_grad_(p.requires_grad)
            every = torch.arange(len(values), device=values.device)[None]
            some.grad = p.grad.new(every, values, some.shape)._coalesced_(True)
        states = self.optimizer.state
        known = states.get(p, {})
        whole = {name: value for name, value in known.items() if _has_rows_of(value, p)}
        of_some = {
            name: self._here(value, rows, rows_on_host) if name in whole else value
            for name, value in known.items()
        }
        if of_some:
            states[some] = of_some
        try:
            step_only(self.optimizer, {id(some)}, {id(p): some})
            stepped = states[some]
        finally:
            states.pop(some, None)
        with torch.no_grad():
            p.index_copy_(0, rows, some)
            state = states[p]
            for name, value in stepped.items():
                if not _has_rows_of(value, some):
                    state[name] = value
                    continue
                host = self._on_host(whole.get(name), value)
                host.index_copy_(0, rows_on_host, value.to(host.device))
                state[name] = host
                self.bytes += value.nbytes if host.device != p.device else 0

    def _here(
        self, state: torch.Tensor, rows: torch.Tensor, rows_on_host: torch.Tensor
    ) -> torch.Tensor:
        """Rows of the state, on the parameter's device."""
        if state.device == self.p.device:
            return state.index_select(0, rows)
        shape = (len(rows_on_host), *state.shape[1:])
        pinned = torch.empty(shape, dtype=state.dtype, pin_memory=self.p.is_cuda)
        torch.index_select(state, 0, rows_on_host, out=pinned)
        return pinned.to(self.p.device, non_blocking=True)

    def _on_host(self, state: torch.Tensor | None, some: torch.Tensor) -> torch.Tensor:
        """The whole of the state, which begins as zeros."""
        if state is None:
            assert fills_with_zeros(self.optimizer)
            return torch.zeros(self.p.shape, dtype=some.dtype)
        return state.cpu()


LEVER = OptimizerOnCpu
