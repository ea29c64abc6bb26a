"""One rank of a large job by itself: `oomph run --world-size 1024 --ranks 0,511 script.py`.

The other ranks are absent. The rendezvous store answers for them, process groups on the
CPU do nothing, and the virtual NCCL assumes that they behave like this rank. Large CPU tensors
are never written, so the script can build a model that is too large for this
machine.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from oomph._older_python import zip

_UNIQUE_ID_BYTES = 128
"""NCCL's unique id of a communicator, the only value that a rank must get from another."""


_kept: list[Any] = []


class _Store(dist.Store):  # type: ignore[misc, name-defined]
    """A store that waits for no other rank."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        # C++ keeps its half of the object only; without the other its methods are gone.
        _kept.append(self)

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._values.get(key, bytes(_UNIQUE_ID_BYTES))

    def add(self, key: str, amount: int) -> int:
        count = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        if self._values.get(key, b"") == expected or key not in self._values:
            self.set(key, desired)
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """The key is already there."""

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    deleteKey = delete_key

    def num_keys(self) -> int:
        return len(self._values)

    getNumKeys = num_keys

    def append(self, key: str, value: Any) -> None:
        self._values[key] = self._values.get(key, b"") + bytes(value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: Any) -> None:
        """There is nothing to wait for."""

    def clone(self) -> _Store:
        return self


def _backend(given: Any) -> str:
    """The same backends, except one on the CPU that does nothing."""
    name = "cpu:fake,cuda:nccl" if given is None else str(given).lower()
    return name.replace("gloo", "fake").replace("mpi", "fake")


def install(recorder: Any) -> None:
    """Torch has just been imported: let groups be made without the other ranks."""
    # A thread of PyTorch's would ask the store each second whether to dump, and the store is Python here: the process aborts
    # if Python ends meanwhile.
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 (registers the backend)

    start, new_group, send_objects = (
        c10d.init_process_group,
        c10d.new_group,
        c10d.broadcast_object_list,
    )

    @functools.wraps(start)
    def init_process_group(
        backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None,
        group_name="", pg_options=None, device_id=None,
    ):  # fmt: skip
        start(
            backend=_backend(backend),
            timeout=timeout,
            world_size=int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size,
            rank=int(os.environ["RANK"]) if rank < 0 else rank,
            store=_Store(),
            group_name=group_name,
            pg_options=pg_options,
            # Bound to a device, groups would be split off each other, which takes all ranks.
        )

    @functools.wraps(new_group)
    def make_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        if backend is not None:
            backend = _backend(backend)
        return new_group(ranks, timeout, backend, *args, **kwargs)

    @functools.wraps(send_objects)
    def broadcast_object_list(objects, src=None, group=None, *args, **kwargs):
        recorder.assumptions.add(
            "ranks", "objects from absent ranks are assumed to equal this rank's", ""
        )

    for module in (c10d, dist):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.new_group = make_group  # type: ignore[attr-defined]
        module.broadcast_object_list = broadcast_object_list  # type: ignore[attr-defined]
    recorder.layer.replace_host(leave_unwritten)
    recorder.assumptions.add(
        "value", "large tensors on the CPU are not written; their contents are unknown", ""
    )


def leave_unwritten(name: str, args: tuple) -> Any:
    """The result of an operator on a large floating-point CPU tensor, without its contents.

    `NotImplemented` for all others. `name` is the operator's.
    """
    if name not in _WRITES or not args or not isinstance(args[0], torch.Tensor):
        return NotImplemented
    t = args[0]
    if t.device.type != "cpu" or not t.is_floating_point() or t.numel() <= _LARGE:
        return NotImplemented
    return t


_LARGE = 1 << 20
"""The largest CPU tensor that is still written, in elements."""

_WRITES = {
    f"aten::{name}_"
    for name in ("normal", "uniform", "fill", "zero", "mul", "add", "sub", "div", "clamp", "erfinv",
                 "copy", "exponential", "log", "clamp_min", "clamp_max")
}  # fmt: skip
