"""What the value layer knows of PyTorch's operators."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from oomph._older_python import zip
from oomph._virtual_gpu.cuda_only import EQUIVALENTS
from oomph._virtual_gpu.dispatch import is_composite, is_view

# Their result has no contents yet.
EMPTY = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
# Neither has that of these, or it is only another description of the same bytes.
_NO_DATA = EMPTY | {
    "aten::detach",
    "aten::alias",
    "aten::resize_",
    "aten::set_",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_has_compatible_shallow_copy_type",
    "aten::_efficientzerotensor",
    "aten::_coalesced_",
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_sparse_coo_tensor_unsafe",
    "aten::_sparse_compressed_tensor_unsafe",
    "aten::_sparse_compressed_tensor_with_dims",
}
COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
# Operators by which values leave the device.
_READS = {"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_", "aten::equal"}

# Matrix products and convolutions, and which argument says how long each of their sums is.
PRODUCTS = {
    "aten::mm": 1, "aten::bmm": 1, "aten::addmm": 2, "aten::baddbmm": 2, "aten::_addmm_activation": 2,
    "aten::convolution": 1, "aten::convolution_backward": 2,
}  # fmt: skip

# How an integral result that depends on unknown floats is filled.
ROUND_ROBIN, PERMUTATION, COMPARISON = "round robin", "permutation", "comparison"
_FILLS = {
    **dict.fromkeys(
        ("argmax", "argmin", "topk", "max", "min", "multinomial", "mode", "median", "kthvalue"),
        ROUND_ROBIN,
    ),
    **dict.fromkeys(("sort", "argsort", "randperm"), PERMUTATION),
    **dict.fromkeys(
        ("gt", "ge", "lt", "le", "eq", "ne", "bernoulli", "logical_not", "isnan", "isinf"),
        COMPARISON,
    ),
}

# They only fill memory: nothing follows from it that its unknown contents would not give.
CONSTANTS = {
    "aten::zeros", "aten::ones", "aten::full", "aten::zeros_like", "aten::ones_like", "aten::full_like",
    "aten::zero_", "aten::fill_", "aten::new_zeros", "aten::new_ones", "aten::new_full",
}  # fmt: skip
# If all of what they read has one value, so has what they give; of those that only move values, it is the first input's.
POINTWISE, MOVED, REDUCED = "pointwise", "moved", "reduced"
_REPEATS = {
    "aten::masked_fill_": POINTWISE,
    **dict.fromkeys(
        (
            "aten::_to_copy", "aten::copy_", "aten::clone", "aten::cat", "aten::repeat", "aten::flip", "aten::roll",
            "aten::_unsafe_view", "aten::index_select", "aten::gather", "aten::upsample_nearest1d",
            "aten::upsample_nearest2d", "aten::upsample_nearest3d", "aten::upsample_linear1d",
            "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::upsample_trilinear3d",
        ),
        MOVED,
    ),
    **dict.fromkeys(
        (
            "aten::all", "aten::any", "aten::sum", "aten::mean", "aten::max", "aten::min", "aten::amax", "aten::amin",
            "aten::count_nonzero", "aten::_is_all_true", "aten::_is_any_true",
        ),
        REDUCED,
    ),
}  # fmt: skip
# Of `CONSTANTS`, what is all zeros, which untouched memory is.
ZEROS = {"aten::zeros", "aten::zeros_like", "aten::zero_", "aten::new_zeros"}
# They write all of what they change, whatever it was before.
OVERWRITES = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_",
    "aten::bernoulli_", "aten::exponential_", "aten::geometric_", "aten::cauchy_", "aten::log_normal_",
    "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::rrelu_with_noise",
}  # fmt: skip
# They change the running statistics that they are given, which their schemas do not say: if this argument says so, or always.
HIDDEN = {
    "aten::native_batch_norm": 5, "aten::cudnn_batch_norm": 5, "aten::batch_norm_gather_stats": None,
    "aten::batch_norm_gather_stats_with_counts": None,
}  # fmt: skip
_STATISTICS = ("running_mean", "running_var")
DROPOUT = "aten::native_dropout"
"""Its mask is for its backward pass alone: where the result is too large to be computed, it is not written
either, which would take the time and the memory of one byte for each element."""

CHECKS = ("aten::linalg_", "aten::_linalg_")
"""So begin the names of operators that read back a status, of which zero means success."""

# They compute element by element from their first two arguments, whose shapes they broadcast.
_PAIRS = {
    "aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::div", "aten::pow", "aten::maximum", "aten::minimum",
    "aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::mse_loss", "aten::smooth_l1_loss",
    "aten::huber_loss",
}  # fmt: skip


class Operator:
    """Properties of one operator, computed once."""

    __slots__ = (
        "apart", "composite", "equivalent", "fill", "hidden", "keeps", "mutated", "name", "overwrites", "pairs", "random", "reads", "repeats", "slots",
        "special", "view",
    )  # fmt: skip

    def __init__(self, func: Any, special: Any) -> None:
        """`special` runs it where the usual way would not do, else None."""
        schema = func._schema
        self.name = schema.name
        writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        hidden = _STATISTICS if self.name in HIDDEN else ()
        # The argument without which it changes nothing.
        self.hidden = HIDDEN.get(self.name)
        self.mutated = [
            (index, argument.name, argument.kwarg_only)
            for index, (argument, written) in enumerate(zip(schema.arguments, writes, strict=True))
            if written or argument.name in hidden
        ]
        # All of what it changes, whatever that was before: by its name, or because it is the result (`out=`).
        self.overwrites = self.name in OVERWRITES or (
            bool(self.mutated) and all(schema.arguments[index].is_out for index, *_ in self.mutated)
        )
        # Where it takes tensors and no numbers. Tensors that stand for Python's numbers, as in a trace, come as numbers.
        kinds = [argument.type.kind() for argument in schema.arguments]
        self.slots = [index for index, kind in enumerate(kinds) if kind == "TensorType"]
        if torch._C._should_allow_numbers_as_tensors(self.name.rpartition("::")[2]):
            self.slots = []
        # What it has of its argument is needed until the CPU computes it.
        self.keeps = bool(self.mutated) and not self.overwrites
        self.view = self.name in _NO_DATA or is_view(schema)
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.reads = self.name in _READS
        pointwise = torch.Tag.pointwise in func.tags and not self.random
        self.repeats = _REPEATS.get(self.name, POINTWISE if pointwise else None)
        if any(argument.is_out for argument in schema.arguments):
            self.repeats = None
        self.pairs = self.name in _PAIRS
        self.special = special
        # Without modes and subclasses that see functions, as below PyTorch's Python; a kernel in Python may be for them.
        self.apart = (
            torch._C.DisableTorchFunction
            if self.name.startswith("aten::")
            else contextlib.nullcontext
        )
        self.composite = is_composite(func.name())
        self.equivalent = EQUIVALENTS.get(func.name()) or EQUIVALENTS.get(self.name)
        self.fill = _FILLS.get(self.name.rsplit("::")[-1].rstrip("_"))

    def changed(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """The arguments that it changes: tensors, and lists of them."""
        return [
            args[index] if index < len(args) else kwargs.get(name)
            for index, name, _ in self.mutated
        ]

    def inputs(self, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        """The tensors from which it computes: not those of which it overwrites all."""
        if self.overwrites:
            args = tuple(
                a for at, a in enumerate(args) if all(at != index for index, *_ in self.mutated)
            )
            kwargs = {
                name: a for name, a in kwargs.items() if all(name != m for _, m, _ in self.mutated)
            }
        found = tensors(args, [])
        return tensors(list(kwargs.values()), found) if kwargs else found


def tensors(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """All tensors in lists and tuples, also nested; of sparse ones, and of nested tensors, those that they consist of."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor):
            # Those that are nested and jagged are of a class in Python, which shows what they consist of.
            layout = item.layout
            if layout is torch.jagged or (layout is torch.strided and not item.is_nested):
                found.append(item)
            else:
                found.extend(parts(item))
        elif isinstance(item, (list, tuple)):
            tensors(item, found)
    return found


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    """The indices and the values of a sparse tensor, the buffer of a nested one; nothing of others."""
    if t.is_nested:
        return [t.values()]
    if t.layout is torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    return []
