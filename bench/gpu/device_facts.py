"""What the driver says of a GPU, for the virtual driver to say the same: `python device_facts.py OUT.json`.

Needs nothing but the driver: attributes, limits, and how many thread-block clusters of each size run at once.
"""

import ctypes as C
import json
import sys

cu = C.CDLL("libcuda.so.1")
PTX = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
"""


def ok(status, what):
    if status:
        raise SystemExit(f"{what}: {status}")


class Dims(C.Structure):
    _fields_ = [
        ("d", C.c_uint * 6),
        ("shared", C.c_uint),
        ("stream", C.c_void_p),
        ("attributes", C.c_void_p),
        ("count", C.c_uint),
    ]


class Attribute(C.Structure):
    _fields_ = [("id", C.c_int), ("pad", C.c_int), ("value", C.c_uint * 16)]


def main():
    ok(cu.cuInit(0), "init")
    device, context = C.c_int(), C.c_void_p()
    ok(cu.cuDeviceGet(C.byref(device), 0), "device")
    ok(cu.cuDevicePrimaryCtxRetain(C.byref(context), device), "context")
    ok(cu.cuCtxSetCurrent(context), "set")
    name, value, size = C.create_string_buffer(99), C.c_int(), C.c_size_t()
    cu.cuDeviceGetName(name, 99, device)
    cu.cuDriverGetVersion(C.byref(value))
    out = dict(
        name=name.value.decode(),
        driver=value.value,
        attributes={},
        limits={},
        function={},
        clusters={},
        occupancy={},
        shared={},
    )
    for which in range(1, 170):
        if cu.cuDeviceGetAttribute(C.byref(value), which, device) == 0:
            out["attributes"][which] = value.value
    for which in range(12):
        if cu.cuCtxGetLimit(C.byref(size), which) == 0:
            out["limits"][which] = size.value
    module, function = C.c_void_p(), C.c_void_p()
    ok(cu.cuModuleLoadData(C.byref(module), PTX), "module")
    ok(cu.cuModuleGetFunction(C.byref(function), module, b"empty"), "function")
    for which in range(16):
        status = cu.cuFuncGetAttribute(C.byref(value), which, function)
        out["function"][which] = value.value if status == 0 else f"error {status}"
    ok(cu.cuFuncSetAttribute(function, 8, out["attributes"][97]), "shared")
    for blocks in (1, 2, 3, 4, 8, 16, 32):
        for threads in (1, 128, 256, 1024):
            status = cu.cuOccupancyAvailableDynamicSMemPerBlock(
                C.byref(size), function, blocks, threads
            )
            out["shared"][f"{blocks}x{threads}"] = size.value if status == 0 else f"error {status}"
    cu.cuOccupancyAvailableDynamicSMemPerBlock(C.byref(size), function, 1, 1)
    most = size.value
    for threads in (1, 32, 64, 128, 256, 512, 1024):
        for shared in (0, 1 << 10, 48 << 10, 100 << 10, most):
            cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                C.byref(value), function, threads, C.c_size_t(shared)
            )
            out["occupancy"][f"{threads}+{shared}"] = value.value
    for portable in (1, 0):
        if not portable:
            ok(cu.cuFuncSetAttribute(function, 14, 1), "non-portable")
        for shared in (most, 100 << 10, 0):
            for threads in (1, 128, 384, 1024):
                for cluster in range(1, 33):
                    attribute = Attribute(4)
                    attribute.value[0:3] = [cluster, 1, 1]
                    dims = Dims(
                        (C.c_uint * 6)(cluster, 1, 1, threads, 1, 1),
                        shared,
                        None,
                        C.cast(C.byref(attribute), C.c_void_p),
                        1,
                    )
                    value.value = -1
                    status = cu.cuOccupancyMaxActiveClusters(
                        C.byref(value), function, C.byref(dims)
                    )
                    out["clusters"][f"{'p' if portable else 'n'} {shared} {threads} {cluster}"] = (
                        value.value if status == 0 else f"error {status}"
                    )
        dims = Dims((C.c_uint * 6)(64, 1, 1, 128, 1, 1), 0, None, None, 0)
        status = cu.cuOccupancyMaxPotentialClusterSize(C.byref(value), function, C.byref(dims))
        out["clusters"][f"{'p' if portable else 'n'} largest"] = (
            value.value if status == 0 else f"error {status}"
        )
    json.dump(out, open(sys.argv[1], "w"))


if __name__ == "__main__":
    main()
