"""Whether a module computes each row or sample of its argument by itself: told by the operators that it calls, not by values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALONG = (
    "sum", "mean", "amax", "amin", "var", "_softmax", "_log_softmax", "linalg_vector_norm", "topk", "sort", "max", "min",
    "argmax", "argmin", "cumsum", "glu", "split", "split_with_sizes", "unbind", "select", "slice", "cat", "stack",
)  # fmt: skip
"""They work along `dim`."""
NORMS = ("native_layer_norm", "_fused_rms_norm", "rms_norm", "layer_norm")
"""They work along the last dimensions."""
ORDERED = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "_reshape_alias")
"""They keep the order of elements."""
COPIES = (
    "_to_copy", "clone", "detach", "alias", "copy", "zeros_like", "ones_like", "empty_like", "full_like",
)  # fmt: skip
PRODUCTS = {"mm": 0, "linear": 0, "matmul": 0, "addmm": 1}
"""With the rows in this argument."""
OF_SAMPLES = (
    "convolution", "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "pixel_shuffle", "pixel_unshuffle", "im2col", "native_group_norm",
)  # fmt: skip
"""They work on each entry of the first dimension of their first argument."""


def why_not_by_rows(
    module: torch.nn.Module, call: Callable[[torch.Tensor], Any], rows: torch.Tensor
) -> str | None:
    """What in `module` does not compute each of `rows` (n, …) by itself; None if all does.

    Calls it with two rows and with three: what it calls must be the same, with the same numbers.
    """
    inner = [part for part in module.modules() if part is not module]
    if any(p._forward_hooks or p._forward_pre_hooks or p._backward_hooks for p in inner):
        return "has hooks on its parts"
    before = [_state(part) for part in module.modules()]
    seen = []
    for count in (2, 3):
        given = rows[:1].expand(count, *rows.shape[1:]).clone()
        version = given._version
        with _Watch(count, given) as watch:
            y = call(given)
        if watch.why:
            return watch.why
        if not isinstance(y, torch.Tensor) or watch.depth(y) is None:
            return "does not return one tensor of the same rows"
        if given._version != version:
            return "changes its input in place"
        seen.append(watch.seen)
    if seen[0] != seen[1]:
        return "looks at the number of its rows"
    if before != [_state(part) for part in module.modules()]:
        return "keeps something of a call"
    return None


def _state(module: torch.nn.Module) -> list[tuple[str, int, int]]:
    held = {**vars(module), **module._buffers}.items()
    return [(name, id(value), _version(value)) for name, value in held]


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class _Watch(TorchDispatchMode):
    """Follows the tensors that hold rows: these are their first dimensions, in their order."""

    def __init__(self, count: int, given: torch.Tensor) -> None:
        super().__init__()
        self.count = count
        self.why: str | None = None
        self.seen: list[tuple[Any, ...]] = []
        self.held = {id(given): given}

    def depth(self, tensor: torch.Tensor) -> int | None:
        """How many of its dimensions are the rows; None if it holds none."""
        if id(tensor) not in self.held:
            return None
        sizes = itertools.accumulate(tensor.shape, lambda a, b: a * b)
        return next((n for n, size in enumerate(sizes, 1) if size == self.count), None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        rows = [t for t in given if id(t) in self.held]
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.why = self.why or f"draws random numbers ({name})"
        numbers = [n for n in (*args, *kwargs.values()) if isinstance(n, (int, float))]
        if name == "native_group_norm":
            numbers.remove(self.count)  # it is told how many samples there are
        self.seen.append((name, numbers))
        if rows and not name.startswith("new_"):
            results = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
            named = dict(zip((one.name for one in func._schema.arguments), args)) | kwargs
            inside = self._is_by_rows(func, name, named, given, rows, results)
            self.held.update((id(t), t) for t in results)
            if not inside or any(self.depth(t) is None for t in results):
                self.why = self.why or f"does not compute each row by itself ({name})"
        return found

    def _is_by_rows(
        self, func: Any, name: str, named: dict[str, Any], given: list, rows: list, results: list
    ) -> bool:
        first, depth = rows[0], self.depth(rows[0])
        if depth is None or not results:
            return False
        lead, plain = first.shape[:depth], name.removesuffix("_")
        if torch.Tag.pointwise in func.tags or plain in COPIES:
            size = results[0].dim()
            return (name == plain or id(given[0]) in self.held) and all(
                t.dim() == size and t.shape[:depth] == lead
                if id(t) in self.held
                # What goes with each row is the same for all.
                else math.prod(t.shape[: max(0, t.dim() - size + depth)]) == 1
                for t in given
            )
        if name in ("cat", "stack"):
            if any(id(t) not in self.held or t.shape[:depth] != lead for t in given):
                return False
        elif len(rows) > 1:
            return False
        if name in OF_SAMPLES:
            has_samples = first.shape[0] == self.count == results[0].shape[0]
            return given[0] is first and has_samples
        if name in ORDERED:
            return name != "expand" or results[0].shape[:depth] == lead
        if name == "permute":
            return [dim % first.dim() for dim in named["dims"]][:depth] == [*range(depth)]
        if name in PRODUCTS:
            bias = given[0]
            alone = name != "addmm" or bias.dim() < 2 or bias.shape[0] == 1
            others = all(t.dim() < 3 for t in given if t is not first)
            return alone and others and given[PRODUCTS[name]] is first and first.dim() > depth
        if name in NORMS:
            return given[0] is first and depth <= first.dim() - len(named["normalized_shape"])
        if name == "transpose":
            dims = [named["dim0"], named["dim1"]]
        elif name in ALONG:
            default = [one.default_value for one in func._schema.arguments if one.name == "dim"]
            dims = named.get("dim", default[0] if default else None)
            dims = dims if isinstance(dims, (list, tuple)) else [dims]
        else:
            return False
        size = first.dim() + (name == "stack")
        return bool(dims) and all(dim is not None and dim % size >= depth for dim in dims)
