"""`nvidia-smi` for scripts on a virtual GPU: what they commonly ask for, read through NVML.

Runs under any Python, without torch and without oomph. Fields and formats are those of
https://docs.nvidia.com/deploy/nvidia-smi; what a virtual GPU does not have is `[N/A]`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Sequence

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
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} failed with {status}")

    def _text(self, name: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(96)
        self._call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def driver(self) -> str:
        """The driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def devices(self) -> list[Device]:
        """All GPUs."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [Device(self, index) for index in range(count.value)]


class Device:
    """One GPU, as it is now."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        """Reads it. Sizes are in bytes."""
        handle = ctypes.c_void_p()
        nvml._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        memory, busy = _Memory(), _Utilization()
        nvml._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        nvml._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(busy))
        self.index, self.memory, self.busy = index, memory, busy
        self.name = nvml._text("nvmlDeviceGetName", handle)
        self.uuid = nvml._text("nvmlDeviceGetUUID", handle)
        count, processes = ctypes.c_uint(256), (_Process * 256)()
        nvml._call(
            "nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), processes
        )
        self.processes: list[tuple[int, int]] = [
            (process.pid, process.used) for process in processes[: count.value]
        ]


_Field = tuple[str, Callable[[Device], object]]
_FIELDS: dict[str, _Field] = {
    "index": ("", lambda gpu: gpu.index),
    "name": ("", lambda gpu: gpu.name),
    "gpu_name": ("", lambda gpu: gpu.name),
    "uuid": ("", lambda gpu: gpu.uuid),
    "gpu_uuid": ("", lambda gpu: gpu.uuid),
    "count": ("", lambda gpu: 1),
    "memory.total": ("MiB", lambda gpu: gpu.memory.total // MIB),
    "memory.used": ("MiB", lambda gpu: gpu.memory.used // MIB),
    "memory.free": ("MiB", lambda gpu: gpu.memory.free // MIB),
    "memory.reserved": ("MiB", lambda gpu: 0),
    "utilization.gpu": ("%", lambda gpu: gpu.busy.gpu),
    "utilization.memory": ("%", lambda gpu: gpu.busy.memory),
    "temperature.gpu": ("", lambda gpu: 0),
    "power.draw": ("W", lambda gpu: "0.00"),
    "driver_version": ("", lambda gpu: Nvml().driver()),
}
_PROCESS_FIELDS = {"pid": "", "used_memory": "MiB", "used_gpu_memory": "MiB"}
_ABSENT = (
    "gpu_serial", "serial", "display_active", "display_mode", "pstate", "power.limit", "fan.speed",
    "pci.bus_id", "compute_mode", "clocks.sm", "clocks.mem", "gpu_bus_id", "process_name", "name",
)  # fmt: skip


def _row(values: Sequence[object], units: Sequence[str], bare: bool) -> str:
    parts = zip(values, units, strict=True)
    return ", ".join(f"{value}{f' {unit}' if unit and not bare else ''}" for value, unit in parts)


def _head(names: Sequence[str], units: Sequence[str], bare: bool) -> str:
    parts = zip(names, units, strict=True)
    return ", ".join(f"{name}{f' [{unit}]' if unit and not bare else ''}" for name, unit in parts)


def _unknown(names: Sequence[str], known: Sequence[str]) -> str | None:
    return next((name for name in names if name not in (*known, *_ABSENT)), None)


def _query(devices: list[Device], names: list[str], head: bool, bare: bool) -> list[str]:
    absent: _Field = ("", lambda gpu: MISSING)
    fields = [_FIELDS.get(name, absent) for name in names]
    units = [unit for unit, _ in fields]
    rows = [_row([read(gpu) for _, read in fields], units, bare) for gpu in devices]
    return [*([_head(names, units, bare)] if head else []), *rows]


def _query_processes(devices: list[Device], names: list[str], head: bool, bare: bool) -> list[str]:
    units = [_PROCESS_FIELDS.get(name, "") for name in names]
    rows = []
    for gpu in devices:
        for pid, used in gpu.processes:
            values = {
                "pid": pid,
                "used_memory": used // MIB,
                "used_gpu_memory": used // MIB,
                "gpu_uuid": gpu.uuid,
                "gpu_name": gpu.name,
            }
            rows.append(_row([values.get(name, MISSING) for name in names], units, bare))
    return [*([_head(names, units, bare)] if head else []), *rows]


def _table(nvml: Nvml, devices: list[Device]) -> list[str]:
    edge = "+" + "-" * 77 + "+"
    lines = [
        edge,
        f"| NVIDIA-SMI on virtual GPUs of oomph     Driver Version: {nvml.driver():<22}|",
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
        nvml = Nvml()
        devices = nvml.devices()
    except OSError:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    if given.id is not None:
        wanted = given.id.split(",")
        chosen = [gpu for gpu in devices if str(gpu.index) in wanted or gpu.uuid in wanted]
        if len(chosen) < len(wanted):
            print("No devices were found")
            return 6
        devices = chosen
    options = given.format.replace(" ", "").split(",")
    head, bare = "noheader" not in options, "nounits" in options
    asked = given.query_gpu or given.query_compute_apps
    if asked:
        names = asked.replace(" ", "").split(",")
        known = list(_FIELDS if given.query_gpu else (*_PROCESS_FIELDS, "gpu_uuid", "gpu_name"))
        if wrong := _unknown(names, known):
            print(f'Field "{wrong}" is not a valid field to query.\n')
            return 2
        query = _query if given.query_gpu else _query_processes
        lines = query(devices, names, head, bare)
    elif given.list_gpus:
        lines = [f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})" for gpu in devices]
    else:
        lines = _table(nvml, devices)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
