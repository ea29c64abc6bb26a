"""`nvidia-smi` for scripts on a virtual GPU: what they commonly ask for, read through NVML.

Runs under any Python, without torch and without oomph. Fields and formats are those of
https://docs.nvidia.com/deploy/nvidia-smi; what a virtual GPU does not have is `[N/A]`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterable

from oomph._older_python import zip

MIB = 1 << 20
MISSING = "[N/A]"


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    ]


class Nvml:
    """The calls of NVML that this needs."""

    def __init__(self) -> None:
        """Raises `OSError` without the library."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: object) -> None:
        """Raises `OSError` if the function fails."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} failed with {status}")

    def text(self, name: str, *arguments: object) -> str:
        """What a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def devices(self) -> list[Device]:
        """All GPUs."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [Device(self, index) for index in range(count.value)]


class Device:
    """One GPU, as it is now."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        """Reads it. Sizes are in bytes."""
        handle = ctypes.c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        memory, busy = _Memory(), _Utilization()
        nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        nvml.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(busy))
        self.index, self.memory, self.busy = index, memory, busy
        self.driver = nvml.text("nvmlSystemGetDriverVersion")
        self.name = nvml.text("nvmlDeviceGetName", handle)
        self.uuid = nvml.text("nvmlDeviceGetUUID", handle)
        count, processes = ctypes.c_uint(256), (_Process * 256)()
        nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), processes)
        self.processes: list[tuple[int, int]] = [
            (process.pid, process.used) for process in processes[: count.value]
        ]


_Row = tuple[Device, int, int]
"""A GPU, and a process on it with its bytes; of a GPU alone, no process."""
_Field = tuple[str, Callable[[_Row], object]]
"""The unit of a field, and how it is read."""

_OF_GPU: dict[str, _Field] = {
    "gpu_name": ("", lambda row: row[0].name),
    "gpu_uuid": ("", lambda row: row[0].uuid),
    "gpu_serial": ("", lambda row: MISSING),
    "gpu_bus_id": ("", lambda row: MISSING),
}
_GPU_FIELDS: dict[str, _Field] = {
    **_OF_GPU,
    "index": ("", lambda row: row[0].index),
    "name": ("", lambda row: row[0].name),
    "uuid": ("", lambda row: row[0].uuid),
    "count": ("", lambda row: 1),
    "memory.total": ("MiB", lambda row: row[0].memory.total // MIB),
    "memory.used": ("MiB", lambda row: row[0].memory.used // MIB),
    "memory.free": ("MiB", lambda row: row[0].memory.free // MIB),
    "memory.reserved": ("MiB", lambda row: 0),
    "utilization.gpu": ("%", lambda row: row[0].busy.gpu),
    "utilization.memory": ("%", lambda row: row[0].busy.memory),
    "temperature.gpu": ("", lambda row: 0),
    "power.draw": ("W", lambda row: "0.00"),
    "driver_version": ("", lambda row: row[0].driver),
    **dict.fromkeys(
        (
            "serial", "display_active", "display_mode", "pstate", "power.limit", "fan.speed",
            "pci.bus_id", "compute_mode", "clocks.sm", "clocks.mem",
        ),
        ("", lambda row: MISSING),
    ),
}  # fmt: skip
_PROCESS_FIELDS: dict[str, _Field] = {
    **_OF_GPU,
    "pid": ("", lambda row: row[1]),
    "used_memory": ("MiB", lambda row: row[2] // MIB),
    "used_gpu_memory": ("MiB", lambda row: row[2] // MIB),
    "name": ("", lambda row: MISSING),
    "process_name": ("", lambda row: MISSING),
}


def _csv(rows: list[_Row], fields: dict[str, _Field], head: bool, bare: bool) -> list[str]:
    """`fields` of all rows; `head`: with a line of names first; `bare`: without units."""

    def line(texts: Iterable[object], form: str) -> str:
        units = ["" if bare else unit for unit, _ in fields.values()]
        pairs = zip(texts, units, strict=True)
        return ", ".join(f"{text}{form.format(unit) if unit else ''}" for text, unit in pairs)

    values = [line([read(row) for _, read in fields.values()], " {}") for row in rows]
    return [*([line(fields, " [{}]")] if head else []), *values]


def _table(devices: list[Device]) -> list[str]:
    edge = "+" + "-" * 77 + "+"
    lines = [
        edge,
        f"| NVIDIA-SMI on virtual GPUs of oomph     Driver Version: {devices[0].driver:<22}|",
        edge,
    ]
    for gpu in devices:
        used = f"{gpu.memory.used // MIB}MiB / {gpu.memory.total // MIB}MiB"
        lines.append(f"| {gpu.index:>3}  {gpu.name:<36} {used:>24} {gpu.busy.gpu:>4}%  |")
    lines += [edge, "| Processes: GPU, PID, GPU memory" + " " * 45 + "|"]
    for gpu in devices:
        lines += [
            f"| {gpu.index:>3} {pid:>12} {used // MIB:>12}MiB" + " " * 45 + "|"
            for pid, used in gpu.processes
        ]
    return [*lines, edge]


def main(arguments: list[str]) -> int:
    """Exit status: 0; 2 for what it does not know; 6 for a GPU that does not exist; 9 without a driver."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps", "--query-apps")
    parser.add_argument("--format", default="csv")
    given = parser.parse_args(arguments)
    try:
        devices = Nvml().devices()
    except OSError:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    if given.id is not None:
        wanted = given.id.split(",")
        chosen = [gpu for gpu in devices if str(gpu.index) in wanted or gpu.uuid in wanted]
        devices = chosen if len(chosen) == len(wanted) else []
    if not devices:
        print("No devices were found")
        return 6
    options = given.format.replace(" ", "").split(",")
    head, bare = "noheader" not in options, "nounits" in options
    asked = given.query_gpu or given.query_compute_apps
    if asked:
        known = _GPU_FIELDS if given.query_gpu else _PROCESS_FIELDS
        names = asked.replace(" ", "").split(",")
        if wrong := next((name for name in names if name not in known), None):
            print(f'Field "{wrong}" is not a valid field to query.\n')
            return 2
        rows = [(gpu, 0, 0) for gpu in devices]
        if given.query_compute_apps:
            rows = [(gpu, *process) for gpu in devices for process in gpu.processes]
        lines = _csv(rows, {name: known[name] for name in names}, head, bare)
    elif given.list_gpus:
        lines = [f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})" for gpu in devices]
    else:
        lines = _table(devices)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
