"""`nvidia-smi` for scripts on a virtual GPU: what they commonly ask for, read through NVML.

Runs under any Python, without torch and without oomph, of which nothing is imported. Fields and formats are those of
https://docs.nvidia.com/deploy/nvidia-smi; what a virtual GPU does not have is `[N/A]`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable

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


class _Pci(ctypes.Structure):
    _fields_ = [
        ("short", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "identity", "subsystem")),
        ("address", ctypes.c_char * 32),
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
        buffer = ctypes.create_string_buffer(4096)
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
        pci, version = _Pci(), ctypes.c_int()
        nvml.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        self.bus = pci.address.decode()
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        self.cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        major, minor = ctypes.c_int(), ctypes.c_int()
        nvml.call(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        )
        self.capability = f"{major.value}.{minor.value}"
        self.clocks = [_clock(nvml, handle, kind) for kind in (0, 1, 2)]
        """Of graphics, multiprocessors and memory, in MHz: now, and at most."""
        self.names = {pid: _name(nvml, pid) for pid, _ in self.processes}


def _clock(nvml: Nvml, handle: ctypes.c_void_p, kind: int) -> int:
    found = ctypes.c_uint()
    nvml.call("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_int(kind), ctypes.byref(found))
    return found.value


def _name(nvml: Nvml, process: int) -> str:
    try:
        return nvml.text("nvmlSystemGetProcessName", ctypes.c_uint(process))
    except OSError:
        return MISSING


_Row = tuple[Device, int, int]
"""A GPU, and a process on it with its bytes; of a GPU alone, no process."""
_Field = tuple[str, Callable[[_Row], object]]
"""The unit of a field, and how it is read."""

_OF_GPU: dict[str, _Field] = {
    "gpu_name": ("", lambda row: row[0].name),
    "gpu_uuid": ("", lambda row: row[0].uuid),
    "gpu_serial": ("", lambda row: MISSING),
    "gpu_bus_id": ("", lambda row: row[0].bus),
}


def _clock_field(kind: int) -> _Field:
    return "MHz", lambda row: row[0].clocks[kind]


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
    "timestamp": ("", lambda row: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "compute_cap": ("", lambda row: row[0].capability),
    "pci.bus_id": ("", lambda row: row[0].bus),
    "pci.bus": ("", lambda row: "0x" + row[0].bus[9:11]),
    "pstate": ("", lambda row: "P0"),
    "compute_mode": ("", lambda row: "Default"),
    "persistence_mode": ("", lambda row: "Disabled"),
    "display_active": ("", lambda row: "Disabled"),
    "display_mode": ("", lambda row: "Disabled"),
    "power.draw.average": ("W", lambda row: "0.00"),
    "power.draw.instant": ("W", lambda row: "0.00"),
    **{
        f"{prefix}.{name}": _clock_field(kind)
        for prefix in ("clocks", "clocks.current", "clocks.max")
        for kind, names in enumerate((("gr", "graphics"), ("sm",), ("mem", "memory")))
        for name in names
    },
    **dict.fromkeys(
        (
            "serial", "gpu_serial", "power.limit", "enforced.power.limit", "power.default_limit", "power.max_limit",
            "power.min_limit", "power.management", "fan.speed", "vbios_version", "inforom.img", "temperature.memory",
            "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
            "mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending", "clocks.video",
            "clocks.current.video", "clocks_throttle_reasons.active", "clocks_event_reasons.active", "encoder.stats.sessionCount",
            "utilization.encoder", "utilization.decoder", "gom.current", "driver_model.current",
            "ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total", "retired_pages.pending",
        ),
        ("", lambda row: MISSING),
    ),
}  # fmt: skip
_PROCESS_FIELDS: dict[str, _Field] = {
    **_OF_GPU,
    "pid": ("", lambda row: row[1]),
    "used_memory": ("MiB", lambda row: row[2] // MIB),
    "used_gpu_memory": ("MiB", lambda row: row[2] // MIB),
    "name": ("", lambda row: row[0].names.get(row[1], MISSING)),
    "process_name": ("", lambda row: row[0].names.get(row[1], MISSING)),
    "timestamp": ("", lambda row: time.strftime("%Y/%m/%d %H:%M:%S.000")),
}


def _csv(rows: list[_Row], fields: dict[str, _Field], head: bool, bare: bool) -> list[str]:
    """`fields` of all rows; `head`: with a line of names first; `bare`: without units."""

    def line(texts: Iterable[object], form: str) -> str:
        units = ["" if bare else unit for unit, _ in fields.values()]
        pairs = zip(texts, units)
        return ", ".join(f"{text}{form.format(unit) if unit else ''}" for text, unit in pairs)

    values = [line([read(row) for _, read in fields.values()], " {}") for row in rows]
    return [*([line(fields, " [{}]")] if head else []), *values]


def _table(devices: list[Device]) -> list[str]:
    """What `nvidia-smi` alone prints, in the driver's layout."""
    first = devices[0]
    edge = "+" + "-" * 89 + "+"
    parts = "+" + "+".join("-" * wide for wide in (41, 24, 22)) + "+"
    title = f"| NVIDIA-SMI {first.driver:<22} Driver Version: {first.driver:<14} CUDA Version: {first.cuda:<9}|"

    def row(left: str, middle: str, right: str) -> str:
        return f"|{left:<41}|{middle:<24}|{right:>21} |"

    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y"), edge, title, parts,
        row(" GPU  Name                 Persistence-M", " Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
        row(" Fan  Temp   Perf          Pwr:Usage/Cap", "           Memory-Usage", "GPU-Util  Compute M."),
        row("", "", "MIG M."), parts.replace("-", "="),
    ]  # fmt: skip
    for gpu in devices:
        used = f"{gpu.memory.used // MIB}MiB / {gpu.memory.total // MIB:>6}MiB"
        lines += [
            row(f" {gpu.index:>3}  {gpu.name[:26]:<26}      Off", f"   {gpu.bus} Off", "N/A"),
            row(" N/A    0C    P0              0W /  N/A", f"{used:>23}", f"{gpu.busy.gpu:>7}%      Default"),
            row("", "", "N/A"), parts,
        ]  # fmt: skip
    lines += [
        "", edge, f"| {'Processes:':<88}|",
        f"| {' GPU   GI   CI              PID   Type   Process name':<70}{'GPU Memory':>17} |",
        f"| {'       ID   ID':<70}{'Usage':>17} |", edge.replace("-", "="),
    ]  # fmt: skip
    running = [(gpu, pid, used) for gpu in devices for pid, used in gpu.processes]
    for gpu, pid, held in running:
        name = gpu.names[pid]
        name = name if len(name) <= 28 else "..." + name[-25:]
        lines.append(
            f"| {gpu.index:>4}   N/A  N/A {pid:>16}      C   {name:<28}{f'{held // MIB}MiB':>17} |"
        )
    if not running:
        lines.append(f"|  {'No running processes found':<87}|")
    return [*lines, edge]


_Section = dict[str, object]
"""Names and what they are, or sections of their own."""


def _details(gpu: Device) -> dict[str, _Section]:
    """The sections of `-q` that a virtual GPU has, by the names that `-d` takes."""

    def mib(size: int) -> str:
        return f"{size // MIB} MiB"

    clocks = dict(zip(("Graphics", "SM", "Memory"), (f"{mhz} MHz" for mhz in gpu.clocks)))
    processes: _Section = {
        f"Process ID {pid}": {"Type": "C", "Name": gpu.names[pid], "Used GPU Memory": mib(used)}
        for pid, used in gpu.processes
    }
    return {
        "": {
            "Product Name": gpu.name, "Persistence Mode": "Disabled", "Display Mode": "Disabled", "Display Active": "Disabled",
            "Serial Number": "N/A", "GPU UUID": gpu.uuid, "Minor Number": gpu.index,
            "PCI": {"Bus Id": gpu.bus}, "Fan Speed": "N/A",
        },
        "PERFORMANCE": {"Performance State": "P0"},
        "MEMORY": {
            "FB Memory Usage": {
                "Total": mib(gpu.memory.total), "Reserved": "0 MiB", "Used": mib(gpu.memory.used), "Free": mib(gpu.memory.free)
            },
        },
        "COMPUTE": {"Compute Mode": "Default"},
        "UTILIZATION": {"Utilization": {"GPU": f"{gpu.busy.gpu} %", "Memory": f"{gpu.busy.memory} %"}},
        "ECC": {"ECC Mode": {"Current": "N/A", "Pending": "N/A"}},
        "TEMPERATURE": {"Temperature": {"GPU Current Temp": "0 C"}},
        "POWER": {"GPU Power Readings": {"Power Draw": "0.00 W", "Current Power Limit": "N/A"}},
        "CLOCK": {"Clocks": clocks, "Max Clocks": clocks},
        "PIDS": {"Processes": processes or "None"},
    }  # fmt: skip


def _listed(section: _Section, deep: int) -> list[str]:
    lines = []
    for name, value in section.items():
        label = "    " * deep + name
        if isinstance(value, dict):
            lines += [label, *_listed(value, deep + 1)]
        else:
            lines.append(f"{label:<50}: {value}")
    return lines


def _as_xml(parent: xml.Element, section: _Section) -> None:
    for name, value in section.items():
        if name.startswith("Process ID "):
            inside = {"pid": name.split()[-1], "type": value["Type"], "process_name": value["Name"], "used_memory": value["Used GPU Memory"]}  # type: ignore[index]  # fmt: skip
            _as_xml(xml.SubElement(parent, "process_info"), inside)
            continue
        tag = _XML.get(name, name.lower().replace(" ", "_").replace("gpu_uuid", "uuid"))
        child = xml.SubElement(parent, tag)
        if isinstance(value, dict):
            _as_xml(child, value)
        else:
            child.text = "" if value == "None" else str(value)


_XML = {
    "GPU": "gpu_util", "GPU Current Temp": "gpu_temp", "SM": "sm_clock", "Graphics": "graphics_clock", "Bus Id": "pci_bus_id",
    "Serial Number": "serial", "Current Power Limit": "current_power_limit",
}  # fmt: skip
"""Tags that are not their names in small letters."""


def _query(devices: list[Device], shown: list[str], as_xml: bool) -> list[str]:
    """`-q`: everything, or the sections `shown`."""
    head = {"Driver Version": devices[0].driver, "CUDA Version": devices[0].cuda, "Attached GPUs": len(devices)}  # fmt: skip
    timestamp = time.strftime("%a %b %e %H:%M:%S %Y")
    chosen = {
        gpu.bus: {
            name: value
            for title, section in _details(gpu).items()
            if not shown or title in shown
            for name, value in section.items()
        }
        for gpu in devices
    }
    if not as_xml:
        lines = ["", "==============NVSMI LOG==============", "", *_listed({"Timestamp": timestamp, **head}, 0), ""]  # fmt: skip
        for bus, sections in chosen.items():
            lines += [f"GPU {bus}", *_listed(sections, 1), ""]
        return lines
    root = xml.Element("nvidia_smi_log")
    _as_xml(root, {"Timestamp": timestamp, **head})
    for bus, sections in chosen.items():
        _as_xml(xml.SubElement(root, "gpu", id=bus), sections)
    xml.indent(root, "\t")
    return ['<?xml version="1.0" ?>', xml.tostring(root, encoding="unicode")]


def main(arguments: list[str]) -> int:
    """Exit status: 0; 2 for what it does not know; 6 for a GPU that does not exist; 9 without a driver."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-d", "--display", default="")
    parser.add_argument("-x", "--xml-format", action="store_true")
    parser.add_argument("-f", "--filename")
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
    elif given.query:
        shown = [name for name in given.display.replace(" ", "").upper().split(",") if name]
        if wrong := next((name for name in shown if name not in _details(devices[0])), None):
            print(f"Invalid combination of input arguments: a virtual GPU has no section {wrong}.")
            return 2
        lines = _query(devices, shown, given.xml_format)
    else:
        lines = _table(devices)
    if given.filename:
        with open(given.filename, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
