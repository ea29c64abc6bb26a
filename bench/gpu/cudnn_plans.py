"""Which plans cuDNN's heuristics choose for many convolutions: `python cudnn_plans.py real|FILE OUT`.

`real` asks with a handle on the GPU; FILE is a device-property JSON, asked without a GPU.
One line a convolution: the engines of its first plans with their work space, or the error.
"""

import ctypes as C
import json
import os
import sys

import torch

lib = C.CDLL("libcudnn.so.9")
HEURISTICS, PLAN, DEVICE = 4, 5, 38
DTYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
I64 = lambda *v: (C.c_int64 * len(v))(*v)
I32 = lambda *v: (C.c_int * len(v))(*v)
F64 = lambda *v: (C.c_double * len(v))(*v)
PTR = lambda *v: (C.c_void_p * len(v))(*[x.value for x in v])


class Refused(Exception):
    pass


def ok(status, what):
    if status:
        raise Refused(f"{what}:{status}")


def make(kind):
    d = C.c_void_p()
    ok(lib.cudnnBackendCreateDescriptor(kind, C.byref(d)), f"create{kind}")
    return d


def put(d, name, kind, values):
    ok(lib.cudnnBackendSetAttribute(d, name, kind, C.c_int64(len(values)), values), f"set{name}")


def get(d, name, kind, values):
    n = C.c_int64()
    ok(
        lib.cudnnBackendGetAttribute(d, name, kind, C.c_int64(len(values)), C.byref(n), values),
        f"get{name}",
    )
    return n.value


def done(d):
    ok(lib.cudnnBackendFinalize(d), "finalize")
    return d


def tensor(uid, dims, dtype, last):
    strides, step = [0] * len(dims), 1
    for axis in [1, *range(len(dims) - 1, 1, -1), 0] if last else range(len(dims) - 1, -1, -1):
        strides[axis] = step
        step *= dims[axis]
    t = make(17)
    put(t, 901, 1, I32(dtype))
    put(t, 902, 3, I64(*dims))
    put(t, 903, 3, I64(*strides))
    put(t, 906, 3, I64(uid))
    put(t, 900, 3, I64(16))
    return done(t)


def plans(conv, handle, device, count):
    """[(engine, work space or error), …] in the order of the heuristics."""
    op, x, w, dtype, last, stride, pad, dilation, transposed, out_pad, groups = conv
    if transposed:  # a transposed convolution is the data gradient of one with the weight as given
        op = {"f": "d", "d": "f", "w": "w"}[op]
        small = [
            (n - 1) * s - 2 * p + d * (k - 1) + o + 1
            for n, s, p, d, k, o in zip(x[2:], stride, pad, dilation, w[2:], out_pad)
        ]
        y, x = x, [x[0], w[1] * groups, *small]
    else:
        y = [
            x[0],
            w[0],
            *[
                (n + 2 * p - d * (k - 1) - 1) // s + 1
                for n, s, p, d, k in zip(x[2:], stride, pad, dilation, w[2:])
            ],
        ]
    kind = {"f": 10, "w": 11, "d": 12}[op]
    dt = DTYPES[dtype]
    tx, tw, ty = (tensor(i, dims, dt, last) for i, dims in ((120, x), (119, w), (121, y)))
    c = make(1)
    put(c, 100, 1, I32(0))
    put(c, 101, 7, I32(1))
    put(c, 102, 3, I64(*dilation))
    put(c, 103, 3, I64(*stride))
    put(c, 104, 3, I64(*pad))
    put(c, 105, 3, I64(*pad))
    put(c, 106, 3, I64(len(stride)))
    done(c)
    o = make(kind)
    ids = {10: range(700, 706), 12: range(706, 712), 11: range(712, 718)}[kind]
    one, zero = F64(1.0), F64(0.0)
    put(o, ids[0], 5, one)
    put(o, ids[1], 5, zero)
    put(o, ids[2], 15, PTR(c))
    put(o, ids[3], 15, PTR(tw))
    put(o, ids[4], 15, PTR(tx))
    put(o, ids[5], 15, PTR(ty))
    done(o)
    g = make(15)
    if handle is not None:
        put(g, 800, 0, PTR(handle))
    put(g, 801, 15, PTR(o))
    done(g)
    h = make(HEURISTICS)
    put(h, 201, 15, PTR(g))
    put(h, 200, 8, I32(0))
    if device is not None:
        put(h, 204, 15, PTR(device))
    done(h)
    configs = [make(3) for _ in range(40)]
    n = get(h, 202, 15, PTR(*configs))
    result = []
    for config in configs[:n]:
        engine = make(2)
        index = I64(-1)
        try:
            get(config, 300, 15, PTR(engine))
            get(engine, 1301, 3, index)
            p = make(PLAN)
            put(p, 401, 15, PTR(config))
            if handle is not None:
                put(p, 400, 0, PTR(handle))
            if device is not None:
                put(p, 407, 15, PTR(device))
            done(p)
            size = I64(0)
            get(p, 402, 3, size)
            result.append((index[0], size[0]))
        except Refused as e:
            result.append((index[0], str(e)))
        if sum(isinstance(s, int) for _, s in result) >= count:
            break
    return result


def main():
    source, out = sys.argv[1:]
    handle = device = None
    if source == "real":
        torch.zeros(1, device="cuda")
        handle = C.c_void_p()
        ok(lib.cudnnCreate(C.byref(handle)), "handle")
    else:
        text = open(source, "rb").read().strip()
        device = make(DEVICE)
        put(device, 2702, 24, (C.c_char * len(text)).from_buffer_copy(text))
        done(device)
    with open(out, "w") as f:
        for conv in json.load(
            open(os.path.join(os.path.dirname(__file__) or ".", "jobs", "convolutions.json"))
        ):
            try:
                line = plans(conv, handle, device, 4)
            except Refused as e:
                line = str(e)
            print(json.dumps([conv, line]), file=f)


if __name__ == "__main__":
    main()
