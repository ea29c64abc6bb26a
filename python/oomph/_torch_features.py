"""What differs between releases of torch: the one place where oomph's Python side knows of it.

Each difference is a name that torch has from some release on, or up to one. Whether the torch of this process has it is looked up,
because builds backport and leave out; `make test-matrix` compares what is looked up with the releases below.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, NamedTuple


class Feature(NamedTuple):
    """A name that not every release has."""

    since: tuple[int, int]
    """The first release that has it."""
    module: str
    path: str
    """Where it is: in a module, a name with dots."""
    without: str
    """What oomph does where it is absent."""
    parameter: str = ""
    """Not the name itself but a parameter of that function."""
    until: tuple[int, int] | None = None
    """The first release that has it no more."""

    def is_expected(self, release: tuple[int, int]) -> bool:
        """Whether a release should have it."""
        return self.since <= release and (self.until is None or release < self.until)


FEATURES = {
    "library_fallback": Feature(
        (2, 5), "torch.library", "Library.fallback",
        "each operator gets an entry of its own when it is first looked up",
    ),
    "hooks_with_kwargs": Feature(
        (2, 6), "torch.nn.modules.module", "register_module_forward_hook",
        "the keyword arguments of an outermost call are read from the frame that calls the hook",
        "with_kwargs",
    ),
    "memory_metadata": Feature(
        (2, 10), "torch._C", "_cuda_setMemoryMetadata",
        "the names of stack frames carry the labels of allocations",
    ),
    "saved_tensor_hooks_top": Feature(
        (2, 8), "torch._C._autograd", "_top_saved_tensors_default_hooks",
        "forbidding hooks on saved tensors for a moment says whether there are any",
    ),
    "sdp_priority": Feature(
        (2, 6), "torch._C", "_set_sdp_priority_order", "the lever attention is refused",
    ),
    "keeps_graph": Feature(
        (2, 5), "torch._C._autograd", "_get_current_graph_task_keep_graph",
        "a loss in chunks keeps the gradients that it has computed for a second backward pass",
    ),
    "tensor_use_count": Feature(
        (2, 3), "torch", "Tensor._use_count", "under the net, tensors may lie elsewhere in each step"
    ),
    "storage_use_count": Feature(
        (2, 1), "torch._C", "_storage_Use_Count", "under the net, tensors may lie elsewhere in each step"
    ),
    "tensor_names": Feature(
        (1, 3), "torch", "Tensor.names", "tensors have no names that a lazy output could give", until=(2, 13)
    ),
}  # fmt: skip

MOVED = {
    "torch.distributed.tensor": ((2, 5), "torch.distributed._tensor"),
    "torch.distributed.fsdp": ((2, 6), "torch.distributed._composable.fsdp"),
}
"""Modules whose names that oomph uses were in another one before that release."""

NEEDED = (
    "torch._C:_ExcludeDispatchKeyGuard", "torch._C:_construct_storage_from_data_pointer",
    "torch._C:_cuda_attach_out_of_memory_observer", "torch._C:_current_autograd_node",
    "torch._C:_current_graph_task_id", "torch._C:_dispatch_get_all_op_names",
    "torch._C:_dispatch_has_kernel_for_dispatch_key", "torch._C:_dispatch_key_parse",
    "torch._C:_dispatch_tls_set_dispatch_key_excluded", "torch._C:_dispatch_tls_set_dispatch_key_included",
    "torch._C:_get_dispatch_stack_at", "torch._C:_get_tracing_state", "torch._C:_len_torch_dispatch_stack",
    "torch._C:_set_tracing_state", "torch._C:_should_allow_numbers_as_tensors", "torch._ops:HigherOrderOperator", "torch._C:_jit_get_all_schemas", "torch._subclasses.fake_tensor:FakeTensorMode",
    "torch._dispatch.python:enable_python_dispatcher", "torch.cuda.memory:_record_memory_history",
    "torch.cuda.memory:_snapshot", "torch.cuda:_lazy_call",
)  # fmt: skip
"""What is not PyTorch's public interface and what nothing here can do without: a release that lacks one is told so."""


def moved(module: str, name: str) -> Any:
    """A name of `module`, from where it was before that module had it. Raise `ImportError` if neither has it."""
    _, before = MOVED[module]
    found = look_up(f"{module}:{name}") or look_up(f"{before}:{name}")
    if found is None:
        raise ImportError(f"this torch has no {name}, neither in {module} nor in {before}")
    return found


@functools.cache
def find(feature: str) -> Any:
    """The object of that name, None where this torch has none."""
    known = FEATURES[feature]
    found = look_up(f"{known.module}:{known.path}")
    if known.parameter and found and known.parameter not in inspect.signature(found).parameters:
        return None
    return found


def look_up(name: str) -> Any:
    """The object of a name `module:path`, None where this torch has none."""
    module, path = name.split(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def has(feature: str) -> bool:
    """Whether this torch has it."""
    return find(feature) is not None
