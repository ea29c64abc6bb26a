"""What the driver's virtual memory functions cost, and what they can do: the facts behind `crates/oomph-net`.

    python bench/gpu/net_facts.py >> bench/gpu/results/FILE

One line of JSON a fact; times in microseconds, the median of several.
"""

import ctypes
import json
import statistics
import threading
import time
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


class Location(ctypes.Structure):
    _fields_ = [("kind", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("location", Location), ("win", c_void_p), ("flags", c_ubyte * 8)]  # fmt: skip


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: {status}")


def create(place, size):
    handle = c_uint64()
    where = Location(1, 0) if place == "device" else Location(3, 0)
    call("cuMemCreate", byref(handle), c_size_t(size), byref(Properties(1, 0, where, None)), c_uint64(0))  # fmt: skip
    return handle


def reserve(size):
    at = c_uint64()
    call("cuMemAddressReserve", byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    return at


def access(at, size, flags=3):
    call("cuMemSetAccess", at, c_size_t(size), byref(Access(Location(1, 0), flags)), c_size_t(1))


def timed(work):
    start = time.perf_counter()
    result = work()
    return (time.perf_counter() - start) * 1e6, result


def say(**fact):
    print(json.dumps(fact), flush=True)


def main():
    call("cuInit", 0)
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    for place in ("device", "host"):
        for size in (2, 8, 20, 32, 128):
            rows = {k: [] for k in ("create", "map", "access", "unmap", "release", "reserve")}
            for _ in range(8):
                took, handle = timed(lambda: create(place, size * MIB))
                rows["create"].append(took)
                took, at = timed(lambda: reserve(size * MIB))
                rows["reserve"].append(took)
                rows["map"].append(timed(lambda: call("cuMemMap", at, c_size_t(size * MIB), c_size_t(0), handle, c_uint64(0)))[0])  # fmt: skip
                rows["access"].append(timed(lambda: access(at, size * MIB))[0])
                rows["unmap"].append(timed(lambda: call("cuMemUnmap", at, c_size_t(size * MIB)))[0])
                rows["release"].append(timed(lambda: call("cuMemRelease", handle))[0])
            say(place=place, mib=size, **{k: round(statistics.median(v), 1) for k, v in rows.items()})  # fmt: skip
    # Is read-only access possible?
    for place in ("device", "host"):
        try:
            handle, at = create(place, 2 * MIB), reserve(2 * MIB)
            call("cuMemMap", at, c_size_t(2 * MIB), c_size_t(0), handle, c_uint64(0))
            access(at, 2 * MIB, 1)
            say(read_only=place, works=True)
            took, _ = timed(lambda: access(at, 2 * MIB, 3))
            say(read_only_to_writable=place, us=round(took, 1))
        except RuntimeError as error:
            say(read_only=place, works=False, error=str(error))
    # Copies between a device range and a host range, one way and both ways.
    size = 512 * MIB
    ranges = {}
    for place in ("device", "host", "device2", "host2"):
        at = reserve(size)
        call(
            "cuMemMap",
            at,
            c_size_t(size),
            c_size_t(0),
            create(place.rstrip("2"), size),
            c_uint64(0),
        )
        access(at, size)
        ranges[place] = at
    streams = [c_void_p(), c_void_p()]
    for stream in streams:
        call("cuStreamCreate", byref(stream), 1)
    for ways in (["device host"], ["host device"], ["device host", "host2 device2"]):
        best = 1e9
        for _ in range(4):
            call("cuCtxSynchronize")
            start = time.perf_counter()
            for way, stream in zip(ways, streams):
                source, to = way.split()
                call("cuMemcpyAsync", ranges[to], ranges[source], c_size_t(size), stream)
            call("cuCtxSynchronize")
            best = min(best, time.perf_counter() - start)
        say(copy=ways, gb_per_s=round(size / best / 1e9, 1))
    # Do mapping and copying go on at the same time?
    handle, at = create("host", 20 * MIB), reserve(20 * MIB)
    for busy in (False, True):
        took = []
        for _ in range(6):
            if busy:
                call("cuMemcpyAsync", ranges["host"], ranges["device"], c_size_t(size), streams[0])

            def remap():
                call("cuMemMap", at, c_size_t(20 * MIB), c_size_t(0), handle, c_uint64(0))
                access(at, 20 * MIB)
                call("cuMemUnmap", at, c_size_t(20 * MIB))

            took.append(timed(remap)[0])
            call("cuCtxSynchronize")
        say(remap_20_mib_host_while_copying=busy, us=round(statistics.median(took), 1))


UNIT = 20 * MIB


def put(at, handles):
    """Puts units one behind the other, at `at`."""
    for index, handle in enumerate(handles):
        call("cuMemMap", c_uint64(at.value + index * UNIT), c_size_t(UNIT), c_size_t(0), handle, c_uint64(0))  # fmt: skip


def take(at, count):
    call("cuMemUnmap", at, c_size_t(count * UNIT))


def remap(at, handles):
    """Microseconds of each part of putting units somewhere and taking them away."""
    count = len(handles)
    return dict(
        map=timed(lambda: put(at, handles))[0],
        access=timed(lambda: access(at, count * UNIT))[0],
        unmap=timed(lambda: take(at, count))[0],
    )


def medians(rows):
    return {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}


def beside():
    """Remapping several units at once, and beside kernels, copies and other threads."""
    import torch

    torch.zeros(1, device="cuda")
    units = {place: [create(place, UNIT) for _ in range(8)] for place in ("host", "device")}
    for place, handles in units.items():
        for count in (1, 2, 4, 8):
            at = reserve(count * UNIT)
            say(place=place, units_in_one_range=count, **medians([remap(at, handles[:count]) for _ in range(6)]))  # fmt: skip
    size = 24 * UNIT
    device, host = reserve(size), reserve(size)
    for at, place in ((device, "device"), (host, "host")):
        put(at, [create(place, UNIT) for _ in range(24)])
        access(at, size)
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), 1)
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    work = {
        "nothing": lambda: None,
        "sleep": lambda: torch.cuda._sleep(40_000_000),
        "hbm": lambda: [y.copy_(x) for _ in range(40)],
        "copy out": lambda: call("cuMemcpyAsync", host, device, c_size_t(size), stream),
        "copy in": lambda: call("cuMemcpyAsync", device, host, c_size_t(size), stream),
    }
    at = reserve(UNIT)
    for name, begin in work.items():
        for place, handles in units.items():
            rows, running = [], True
            for _ in range(6):
                torch.cuda.synchronize()
                begin()
                rows.append(remap(at, handles[:1]))
                if name in ("sleep", "hbm"):
                    running = running and not torch.cuda.current_stream().query()
            torch.cuda.synchronize()
            say(beside=name, place=place, still_running=running, **medians(rows))
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    for count in (1, 2, 4):

        def remaps(handle):
            call("cuCtxSetCurrent", context)
            own = reserve(UNIT)
            for _ in range(10):
                remap(own, [handle])

        threads = [threading.Thread(target=remaps, args=(handle,)) for handle in units["host"][:count]]  # fmt: skip
        took, _ = timed(lambda: [t.start() for t in threads] + [t.join() for t in threads])
        say(threads=count, place="host", us_per_remap=round(took / 10 / count, 1))
    stop, z = threading.Event(), torch.zeros(64, device="cuda")

    def churn():
        call("cuCtxSetCurrent", context)
        while not stop.is_set():
            remap(at, units["host"][:1])

    def launches():
        for _ in range(2000):
            z.add_(1)
        torch.cuda.synchronize()

    launches()
    say(launch_us_alone=round(timed(launches)[0] / 2000, 2))
    thread = threading.Thread(target=churn)
    thread.start()
    say(launch_us_beside_remaps=round(timed(launches)[0] / 2000, 2))
    stop.set()
    thread.join()


if __name__ == "__main__":
    main()
    beside()
