"""Copies of saved tensors in pinned host memory."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph._user_functions import in_transform
from oomph.levers._shared.base import failure
from oomph.levers._shared.recomputation import without_graph
from oomph.levers._shared.streams import copy_stream

SMALLEST = 256 << 10
"""Bytes below which a copy costs more than it saves."""

IN_FLIGHT = 128 << 20
"""Bytes in flight to the host whose memory the GPU still holds, and bytes prefetched for the
backward pass; at least one tensor. At 50 GB/s they cover 2.5 ms of computation."""

PART = 4
"""A view's whole storage is copied unless it is more than this many times larger."""


class HostCopies:
    """Takes what autograd saves to host memory and back, for one lever.

    `pack` and `unpack` are the hooks of `torch.autograd.graph.saved_tensors_hooks`.
    """

    def __init__(self, lever: str, in_flight: int | None = None, most: int | None = None) -> None:
        """`lever`: whose name errors have. `in_flight`: bytes, `IN_FLIGHT` by default. `most`: bytes that may be on the host at a
        time, as many as there are by default."""
        self._lever, self._in_flight, self._most = lever, in_flight, most
        self._transfers: dict[torch.device, Transfers] = {}
        self._fixed: set[int] = set()

    def keep(self, root: torch.nn.Module, others: bool = False) -> None:
        """A pass of `root` begins, whose parameters and buffers stay; with `others`, those known so far, too."""
        for transfers in self._transfers.values():
            transfers.forget()
        # Each pass again: parameters may have been moved or replaced.
        fixed = {
            base(t)
            for t in (*root.parameters(), *root.buffers())
            if type(t) in (torch.Tensor, torch.nn.Parameter) and _has_memory(t)
        }
        self._fixed = self._fixed | fixed if others else fixed

    def settle(self) -> None:
        """Release the GPU's memory of all that is under way."""
        for transfers in self._transfers.values():
            transfers.settle(0)

    def leaves(self, tensor: torch.Tensor) -> bool:
        """Whether a saved tensor goes."""
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and _is_offloadable(tensor)
            and tensor.nbytes >= SMALLEST
            and base(tensor) not in self._fixed
        )

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps in place of a tensor that `leaves`: itself, where the host has as much as it may."""
        device = tensor.device
        if device not in self._transfers:
            in_flight = IN_FLIGHT if self._in_flight is None else self._in_flight
            self._transfers[device] = Transfers(device, in_flight, self._most)
        return self._transfers[device].save(tensor)

    def unpack(self, saved: Any) -> torch.Tensor:
        """The tensor, on the GPU again."""
        if not isinstance(saved, Saved):
            return saved
        entry = saved.entry
        if entry.changed or (
            entry._tensor is not None and entry._tensor._version != entry._version
        ):
            raise failure(
                self._lever,
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: a {saved.dtype} tensor of shape {list(saved.shape)}, saved and then changed",
            )
        entry.transfers.fetch(entry)
        source = entry.device_bytes
        assert source is not None  # it has just been fetched
        entry.used(saved)
        if not saved.whole:
            return source
        storage = source.untyped_storage()
        tensor = torch.empty(0, dtype=saved.dtype, device=source.device).set_(
            storage, saved.offset, saved.shape, saved.stride
        )
        if torch.is_grad_enabled():  # gradients get a graph of their own (create_graph)
            entry.transfers.know(entry, storage, tensor)
        return tensor


def _is_offloadable(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and _has_memory(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether it has memory of its own, which neither a sparse tensor has nor what `torch.func` puts around one."""
    return tensor.layout is torch.strided and not in_transform()


def base(tensor: torch.Tensor) -> int:
    """Where the tensor's storage begins, without making a Python object for the storage."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


class Transfers:
    """Copies between one GPU and the host, on two streams of their own."""

    def __init__(self, device: torch.device, in_flight: int, most: int | None = None) -> None:
        """`device` is that of the activations; on a CPU, copies are made at once. `most`: bytes on the host at a time."""
        self.in_flight, self.most = in_flight, most
        self.held = 0
        """Bytes on the host."""
        cuda = device.type == "cuda"
        self.out = copy_stream(device) if cuda else None
        self.back = copy_stream(device) if cuda else None
        self.leaving: deque[Entry] = deque()
        self.leaving_bytes = 0
        self.order: list[weakref.ref[Entry]] = []
        """Entries in the order of saving; the backward pass needs them in reverse."""
        self._by_storage: dict[tuple, tuple[weakref.ref[Entry], StorageWeakRef]] = {}
        """The weak reference to the storage shows whether the address still belongs to it."""
        self.fetched = True
        """Whether a backward pass has asked for something since the step began."""
        self._stays: dict[tuple, StorageWeakRef] = {}
        """What stays on the GPU, as the host has its share."""
        self._seen = self._sent = self._total = 0
        """Bytes that a step has saved so far in tensors that are not large, those that went to the host, and the former of the step before."""

    def save(self, tensor: torch.Tensor) -> Saved | torch.Tensor:
        """Send `tensor` to the host, unless that has as much as it may."""
        storage = tensor.untyped_storage()
        whole = storage.nbytes() <= PART * tensor.nbytes
        key: tuple = (storage._cdata, tensor._version)
        if not whole:
            key += (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._by_storage.get(key)
        entry = known[0]() if known is not None and not known[1].expired() else None
        if entry is None:
            stays = self._stays.get(key)
            if stays is not None and not stays.expired():
                return without_graph(tensor)
            source = _bytes_of(storage, tensor.device) if whole else tensor.detach()
            if self.most is not None and not self._goes(source.nbytes, self.most):
                self._stays[key] = StorageWeakRef(storage)
                return without_graph(tensor)
            self.held += source.nbytes
            entry = Entry(self, source, tensor)
            entry.number = len(self.order)
            self.order.append(weakref.ref(entry))
            self._by_storage[key] = weakref.ref(entry), StorageWeakRef(storage)
            self._send(entry)
        return Saved(entry, tensor, whole)

    def _goes(self, size: int, most: int) -> bool:
        """Whether the next `size` bytes go, where at most `most` may be on the host.

        Those that go are spread over all that a step saves, as far as the step before tells how much that is: copies then go on
        beside all of its kernels, and not in a row at its beginning, where each would be waited for. What may be in flight anyway
        goes at once. A tensor of more than an eighth of `most` goes only where the others are not enough.
        """
        if (
            self.fetched and self.held <= most // 16
        ):  # the backward pass has used what was there: another step
            self._total, self._seen, self._sent = self._seen, 0, 0
            self.fetched = False
        is_large = 8 * size > most
        self._seen += 0 if is_large else size
        if self._total >= most > 0:
            share = most * self._seen // self._total
            allowed = 0 if is_large else max(share, min(self.in_flight, most))
        else:
            allowed = most
        if self.held + size > most or self._sent + size > allowed:
            return False
        self._sent += size
        return True

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
        self.settle(self.in_flight)

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
        self._by_storage = {
            k: (ref, storage)
            for k, (ref, storage) in self._by_storage.items()
            if ref() is not None and not storage.expired()
        }
        self._stays = {
            key: storage for key, storage in self._stays.items() if not storage.expired()
        }
        alive = [ref for ref in self.order if ref() is not None]
        for number, ref in enumerate(alive):
            if (entry := ref()) is not None:
                entry.number = number
        self.order = alive

    def fetch(self, entry: Entry) -> None:
        """Fetch `entry`, and prefetch those that the backward pass needs next."""
        self.fetched = True
        self._begin(entry)
        ahead = 0
        for number in range(entry.number - 1, -1, -1):
            other = self.order[number]()
            if other is None or not other.waiting:
                continue
            if ahead and ahead + other.nbytes > self.in_flight:
                break
            ahead += other.nbytes
            self._begin(other)
        if entry.came is not None:
            torch.cuda.current_stream(entry.device).wait_event(entry.came)
            entry.came = None

    def know(self, entry: Entry, storage: Any, tensor: torch.Tensor) -> None:
        """`tensor` was handed out, a view of the `storage` that was fetched: a graph of gradients saves it, and it is
        on the host already."""
        key = storage._cdata, tensor._version
        self._by_storage[key] = weakref.ref(entry), StorageWeakRef(storage)

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

    def __init__(self, transfers: Transfers, source: torch.Tensor, tensor: Any) -> None:
        """`source` is what is copied, of which `tensor` is a view."""
        self.transfers = transfers
        self.device, self.nbytes = source.device, source.nbytes
        self.device_bytes: torch.Tensor | None = source
        self.host: Any = None
        self.left: Any = None
        self.came: Any = None
        self.number = 0
        self.changed = False
        self.waiting: set[int] = set()
        """What autograd keeps of it and has not asked for yet."""
        self._tensor, self._version = tensor.detach(), tensor._version

    def used(self, saved: Saved) -> None:
        """`saved` has been handed out. With the last one of them the GPU's memory is no longer needed here: a
        graph that is retained keeps the entry."""
        self.waiting.discard(id(saved))
        if not self.waiting and self._tensor is None:
            self.device_bytes = None

    def let_go(self) -> None:
        """The copy is made: the GPU's memory is no longer needed here."""
        self.changed = self._tensor is not None and self._tensor._version != self._version
        self.device_bytes = self._tensor = None

    def __del__(self) -> None:
        """Wait for an outstanding copy."""
        self.transfers.held -= self.nbytes
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
        entry.waiting.add(id(self))


def _bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    """All of `storage` in one dimension, in units that divide it."""
    # Not as bytes if possible: the virtual GPU computes integral tensors.
    dtype = torch.float32 if storage.nbytes() % 4 == 0 else torch.uint8
    return torch.empty(0, dtype=dtype, device=device).set_(storage)
