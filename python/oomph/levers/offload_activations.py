"""Offloads activations of chosen modules to pinned host memory."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph.levers._shared.base import Lever, failure
from oomph.levers._shared.compiled import refuse_compiled, refuse_in_compiled
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job

SMALLEST = 256 << 10
"""Bytes below which a copy costs more than it saves."""

IN_FLIGHT = 128 << 20
"""Bytes in flight to the host whose memory the GPU still holds, and bytes prefetched for the
backward pass; at least one tensor. At 50 GB/s they cover 2.5 ms of computation."""

PART = 4
"""A view's whole storage is copied unless it is more than this many times larger."""


class OffloadActivations(Lever):
    """Copies what modules save for the backward pass to pinned host memory.

    Needs: a CUDA GPU and as much host memory, up to twice (PyTorch rounds pinned memory to powers of
    two). Changes: activations are copied on a separate stream while the forward pass continues, and
    prefetched for the backward pass. Results: bitwise the same. It costs no time as long as the copies take
    no longer than the modules.

    Parameters, buffers and small tensors stay. A storage that is saved several times, or as several
    views, is copied once. Inert without gradients; modules that are compiled are refused.
    """

    name = "offload_activations"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
        self.used: set[str] = set()
        self.called: set[str] = set()
        self.transfers: dict[torch.device, Transfers] = {}
        self.last: int | None = None
        """The module whose forward comes last among the chosen, as of the last pass."""
        self.latest: int | None = None
        self.fixed: set[int] = set()

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        job.on_model.append(self._model)
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            self.handles.append(around_forward(module, self._around(name), self.order))

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        for transfers in self.transfers.values():
            transfers.forget()
        # Each pass again: parameters may have been moved or replaced.
        self.fixed = {
            _base(t)
            for t in (*root.parameters(), *root.buffers())
            if type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided
        }

    def _leave(self, root: torch.nn.Module, output: Any) -> None:
        for transfers in self.transfers.values():
            transfers.settle(0)
        self.last = self.latest

    def _around(self, name: str) -> Any:
        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if torch.compiler.is_compiling():
                refuse_in_compiled(self, name)
            self.called.add(name)

            def pack(tensor: torch.Tensor) -> Any:
                if not self._leaves(tensor):
                    return tensor
                self.used.add(name)
                device = tensor.device
                if device not in self.transfers:
                    self.transfers[device] = Transfers(device)
                return self.transfers[device].save(tensor)

            with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
                output = forward(*args, **kwargs)
            self.latest = id(module)
            if self.last == self.latest:
                # The next operation (a head, a loss) is often the peak: release everything.
                for transfers in self.transfers.values():
                    transfers.settle(0)
            return output

        return around

    def _leaves(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and _is_offloadable(tensor)
            and tensor.nbytes >= SMALLEST
            and _base(tensor) not in self.fixed
        )

    def finish(self) -> None:
        """Count the modules with offloaded tensors."""
        self.applied = len(self.used)
        if problem := self.places.problem():
            self.add_note(problem)
        if not self.called and not self.places.missing:
            self.add_note(
                "the modules were never called with gradients, so they saved nothing anyway"
            )
        elif self.called - self.used:
            idle = sorted(self.called - self.used)
            self.add_note(
                f"{len(idle)} of the modules saved nothing of {SMALLEST >> 10} KiB or more on a GPU: "
                f"{', '.join(idle[:3])}"
            )


def _is_offloadable(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.layout is torch.strided


def _base(tensor: torch.Tensor) -> int:
    """Where the tensor's storage begins, without making a Python object for the storage."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


class Transfers:
    """Copies between one GPU and the host, on two streams of their own."""

    def __init__(self, device: torch.device) -> None:
        """`device` is that of the activations; on a CPU, copies are made at once."""
        cuda = device.type == "cuda"
        self.out = torch.cuda.Stream(device) if cuda else None
        self.back = torch.cuda.Stream(device) if cuda else None
        self.leaving: deque[Entry] = deque()
        self.leaving_bytes = 0
        self.order: list[weakref.ref[Entry]] = []
        """Entries in the order of saving; the backward pass needs them in reverse."""
        self._by_storage: dict[tuple, weakref.ref[Entry]] = {}

    def save(self, tensor: torch.Tensor) -> Saved:
        """Send `tensor` to the host."""
        storage = tensor.untyped_storage()
        whole = storage.nbytes() <= PART * tensor.nbytes
        # The weak reference shows whether the address still belongs to this storage.
        key: tuple = (storage._cdata, tensor._version)
        if not whole:
            key += (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._by_storage.get(key)
        entry = known() if known is not None else None
        if entry is None or entry.storage.expired():
            source = _bytes_of(storage, tensor.device) if whole else tensor.detach()
            entry = Entry(self, StorageWeakRef(storage), source, tensor)
            entry.number = len(self.order)
            self.order.append(weakref.ref(entry))
            self._by_storage[key] = weakref.ref(entry)
            self._send(entry)
        return Saved(entry, tensor, whole)

    def _send(self, entry: Entry) -> None:
        source = entry.device_bytes
        entry.host = torch.empty_like(source, device="cpu", pin_memory=self.out is not None)
        if self.out is None:
            entry.host.copy_(source)
        else:
            self.out.wait_stream(torch.cuda.current_stream(source.device))
            with torch.cuda.stream(self.out):
                entry.host.copy_(source, non_blocking=True)
                entry.left = self.out.record_event()
        self.leaving.append(entry)
        self.leaving_bytes += source.nbytes
        self.settle(IN_FLIGHT)

    def settle(self, most: int) -> None:
        """Release GPU memory until at most `most` bytes are in flight.

        The compute stream waits for the copies before it reuses the memory; the host
        does not wait. Which memory is free at which operator does not depend on timing.
        """
        while self.leaving and self.leaving_bytes > most and (most == 0 or len(self.leaving) > 1):
            entry = self.leaving.popleft()
            self.leaving_bytes -= entry.nbytes
            if entry.left is not None:
                torch.cuda.current_stream(entry.device).wait_event(entry.left)
            entry.let_go()

    def forget(self) -> None:
        """Drop what the last backward pass has used up."""
        self._by_storage = {k: ref for k, ref in self._by_storage.items() if ref() is not None}
        alive = [ref for ref in self.order if ref() is not None]
        for number, ref in enumerate(alive):
            if (entry := ref()) is not None:
                entry.number = number
        self.order = alive

    def fetch(self, entry: Entry) -> None:
        """Fetch `entry`, and prefetch those that the backward pass needs next."""
        self._begin(entry)
        ahead = 0
        for number in range(entry.number - 1, -1, -1):
            other = self.order[number]()
            if other is None:
                continue
            if ahead and ahead + other.nbytes > IN_FLIGHT:
                break
            ahead += other.nbytes
            self._begin(other)
        if entry.came is not None:
            torch.cuda.current_stream(entry.device).wait_event(entry.came)
            entry.came = None

    def _begin(self, entry: Entry) -> None:
        if entry.device_bytes is not None:
            return
        # The computing stream's own memory: it was free at this point of that stream, and what is
        # freed later may be used by it at once.
        entry.device_bytes = torch.empty_like(entry.host, device=entry.device)
        if self.back is None:
            entry.device_bytes.copy_(entry.host)
            return
        self.back.wait_stream(torch.cuda.current_stream(entry.device))
        with torch.cuda.stream(self.back):
            entry.device_bytes.copy_(entry.host, non_blocking=True)
            entry.came = self.back.record_event()


class Entry:
    """One storage (or part of one) in host memory; lives as long as autograd needs it."""

    def __init__(
        self, transfers: Transfers, storage: StorageWeakRef, source: torch.Tensor, tensor: Any
    ) -> None:
        """`source` is what is copied, of which `tensor` is a view."""
        self.transfers, self.storage = transfers, storage
        self.device, self.nbytes = source.device, source.nbytes
        self.device_bytes: torch.Tensor | None = source
        self.host: Any = None
        self.left: Any = None
        self.came: Any = None
        self.number = 0
        self.changed = False
        self._tensor, self._version = tensor.detach(), tensor._version

    def let_go(self) -> None:
        """The copy is made: the GPU's memory is no longer needed here."""
        self.changed = self._tensor is not None and self._tensor._version != self._version
        self.device_bytes = self._tensor = None

    def __del__(self) -> None:
        """Wait for an outstanding copy."""
        # Prefetched but never used: the next user of this memory must wait for the copy into it.
        if self.came is not None:
            torch.cuda.current_stream(self.device).wait_event(self.came)


class Saved:
    """What autograd keeps in place of a tensor."""

    def __init__(self, entry: Entry, tensor: torch.Tensor, whole: bool) -> None:
        """`tensor` is a view of the entry's storage, or the entry itself."""
        self.entry, self.whole = entry, whole
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.offset = tensor.storage_offset()


def _unpack(saved: Any) -> torch.Tensor:
    if not isinstance(saved, Saved):
        return saved
    entry = saved.entry
    if entry.changed or (entry._tensor is not None and entry._tensor._version != entry._version):
        raise failure(
            "offload_activations",
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {saved.dtype} tensor of shape {list(saved.shape)}, saved and then changed",
        )
    entry.transfers.fetch(entry)
    source = entry.device_bytes
    assert source is not None  # it has just been fetched
    if not saved.whole:
        return source
    return torch.empty(0, dtype=saved.dtype, device=source.device).set_(
        source.untyped_storage(), saved.offset, saved.shape, saved.stride
    )


def _bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    """All of `storage` in one dimension, in units that divide it."""
    # Not as bytes if possible: the virtual GPU computes integral tensors.
    dtype = torch.float32 if storage.nbytes() % 4 == 0 else torch.uint8
    return torch.empty(0, dtype=dtype, device=device).set_(storage)


LEVER = OffloadActivations
