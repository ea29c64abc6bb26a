"""What cuDNN asks for as work space, for 26 convolutions in two types and two layouts: `oomph run --gpu h200 work_spaces.py OUT`.

`results/work_spaces.jsonl` has the answers of cuDNN 9.19 (torch 2.11, 2026-11-23) for an H200's description, in bytes. The rule of
`crates/oomph-vgpu/src/cudnn_costs.rs` for versions that take no description is compared with them in its tests.
"""

import json
import sys

import torch

# Images, channels, height, width, filters, window, stride, groups.
SHAPES = [
    (64, 3, 224, 224, 64, 7, 2, 1), (64, 64, 56, 56, 64, 3, 1, 1), (64, 64, 56, 56, 256, 1, 1, 1),
    (64, 256, 56, 56, 64, 1, 1, 1), (64, 128, 28, 28, 128, 3, 1, 1), (64, 256, 56, 56, 128, 1, 1, 1),
    (64, 256, 56, 56, 512, 1, 2, 1), (64, 256, 14, 14, 256, 3, 1, 1), (64, 512, 7, 7, 512, 3, 1, 1),
    (64, 1024, 14, 14, 256, 1, 1, 1), (64, 512, 7, 7, 2048, 1, 1, 1), (8, 64, 256, 256, 64, 3, 1, 1),
    (8, 128, 128, 128, 128, 3, 1, 1), (8, 512, 32, 32, 512, 3, 1, 1), (8, 1024, 16, 16, 1024, 3, 1, 1),
    (8, 3, 256, 256, 64, 3, 1, 1), (8, 64, 256, 256, 1, 1, 1, 1), (32, 32, 112, 112, 32, 3, 1, 32),
    (32, 192, 28, 28, 192, 3, 2, 192), (16, 3, 224, 224, 768, 16, 16, 1), (128, 1, 28, 28, 32, 3, 1, 1),
    (128, 32, 26, 26, 64, 3, 1, 1), (4, 4, 64, 64, 320, 3, 1, 1), (4, 320, 64, 64, 320, 3, 1, 1),
    (4, 640, 32, 32, 640, 3, 1, 1), (32, 128, 56, 56, 128, 3, 1, 32),
]  # fmt: skip
NAMES = {"forward": None, "data": [True, False, False], "weight": [False, True, False]}


def beyond(call):
    """What a call allocates beyond its result, in bytes."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    found = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() >= before
    del result
    return found


def rows():
    for shape in SHAPES:
        count, channels, height, width, filters, window, stride, groups = shape
        for dtype in (torch.float32, torch.bfloat16):
            for layout in ("nchw", "nhwc"):
                order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
                make = lambda *size: torch.randn(size, device="cuda", dtype=dtype).contiguous(
                    memory_format=order
                )
                x = make(count, channels, height, width)
                w = make(filters, channels // groups, window, window)
                pad = window // 2 if window < 16 else 0
                rest = (None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
                y = torch.ops.aten.convolution(x, w, *rest)
                gradient = torch.randn_like(y)
                row = dict(shape=shape, dtype=str(dtype)[6:], layout=layout)
                for name, mask in NAMES.items():
                    if mask is None:
                        row[name] = beyond(lambda: torch.ops.aten.convolution(x, w, *rest))
                    else:
                        row[name] = beyond(
                            lambda: torch.ops.aten.convolution_backward(gradient, x, w, *rest, mask)
                        )
                yield row


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        for row in rows():
            print(json.dumps(row), file=file)
