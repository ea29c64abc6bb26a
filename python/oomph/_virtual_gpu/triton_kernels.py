"""Computes the script's own Triton kernels in Triton's interpreter, over the bytes that stand for device memory.

A kernel is compiled and launched as ever, for its memory, and does nothing; then it is interpreted. Which of its arguments it read
and wrote follows from the addresses that it loads and stores: what it wrote is known if all that it read is. Launches that a
CUDA graph captures are interpreted in its replays. Kernels of `torch.compile` do not come here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph._older_python import zip
from oomph._user_code import user_line
from oomph._virtual_gpu.graph_values import alias

SECONDS = 30.0
"""The longest that one launch is interpreted. Programs of a grid run one after another, in Python."""


class _TooLong(Exception):
    """A launch takes longer than `SECONDS`."""


class _Launch:
    """What one launch loaded and stored."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        self.given = given
        size = [
            sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) + 1
            for t in given
        ]
        self._ends = [t.data_ptr() + n * t.element_size() for t, n in zip(given, size, strict=True)]
        self.loaded = [False] * len(given)
        self.stored = [0] * len(given)
        self.until = time.monotonic() + SECONDS

    def touch(self, pointers: Any, mask: Any, stores: bool) -> None:
        """Arrays of addresses, and which of them count."""
        pointers = pointers[mask] if mask is not None else pointers
        if pointers.size == 0:
            return
        low, high = int(pointers.min()), int(pointers.max())
        for at, (t, end) in enumerate(zip(self.given, self._ends, strict=True)):
            if low < end and high >= t.data_ptr():
                if stores:
                    self.stored[at] += pointers.size
                else:
                    self.loaded[at] = True


class TritonKernels:
    """Interprets for one `ValueLayer`."""

    def __init__(self, layer: Any) -> None:
        """Interpret from the import of Triton on."""
        self._layer = layer
        self._here = threading.local()
        self._interpreted: dict[Any, Any] = {}
        on_import("triton.runtime.jit", self._watch)
        on_import("triton.runtime.autotuner", self._watch_tuning)

    def _watch(self, jit: Any) -> None:
        function = jit.JITFunction
        run, call = function.run, function.__call__

        @functools.wraps(run)
        def run_and_interpret(
            kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any
        ) -> Any:
            with self._layer.answered():
                result = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup and not getattr(self._here, "tuning", False):
                self._interpret(kernel, grid, args, kwargs)
            return result

        @functools.wraps(call)
        def call_interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "launch", None) is None:
                return call(kernel, *args, **kwargs)
            return self._function(kernel)(*args, **kwargs)

        function.run, function.__call__ = run_and_interpret, call_interpreted

    def _watch_tuning(self, autotuner: Any) -> None:
        """Its trial runs change nothing that the script reads."""
        bench = autotuner.Autotuner._bench

        @functools.wraps(bench)
        def without_values(*args: Any, **kwargs: Any) -> Any:
            self._here.tuning = True
            try:
                with self._layer.aside(), self._layer.answered():
                    return bench(*args, **kwargs)
            finally:
                self._here.tuning = False

        autotuner.Autotuner._bench = without_values

    def _function(self, kernel: Any) -> Any:
        found = self._interpreted.get(kernel.fn)
        if found is None:
            self._watch_interpreter()
            from triton.runtime.interpreter import InterpretedFunction

            found = self._interpreted[kernel.fn] = InterpretedFunction(kernel.fn)
        return found

    @functools.cache  # noqa: B019  (one object a process)
    def _watch_interpreter(self) -> None:
        from triton.runtime import interpreter

        Builder = interpreter.InterpreterBuilder

        def watched(name: str, pointers_of: Any, loads: bool, stores: bool) -> None:
            original = getattr(Builder, name)

            @functools.wraps(original)
            def touching(builder: Any, *args: Any) -> Any:
                launch = getattr(self._here, "launch", None)
                if launch is not None:
                    pointers, mask = pointers_of(*args)
                    if loads:
                        launch.touch(pointers, mask, False)
                    if stores:
                        launch.touch(pointers, mask, True)
                return original(builder, *args)

            setattr(Builder, name, touching)

        def masked(pointers: Any, *args: Any) -> tuple[Any, Any]:
            return pointers.data, args[0].data

        def stored(pointers: Any, value: Any, mask: Any, *args: Any) -> tuple[Any, Any]:
            return pointers.data, mask.data

        def reduced(
            operator: Any, pointers: Any, value: Any, mask: Any, *args: Any
        ) -> tuple[Any, Any]:
            return pointers.data, mask.data

        def all_of(pointers: Any, *args: Any) -> tuple[Any, Any]:
            return pointers.data, None

        watched("create_masked_load", masked, True, False)
        watched("create_masked_store", stored, False, True)
        watched("create_atomic_rmw", reduced, True, True)
        watched("create_atomic_cas", all_of, True, True)
        at = Builder.set_grid_idx

        @functools.wraps(at)
        def in_time(builder: Any, *args: Any) -> None:
            launch = getattr(self._here, "launch", None)
            if launch is not None and time.monotonic() > launch.until:
                raise _TooLong
            at(builder, *args)

        Builder.set_grid_idx = in_time

        patch = interpreter._patch_lang_tensor

        @functools.wraps(patch)
        def with_loops(tensor: Any, *args: Any) -> None:
            # NumPy 2.4 makes no integer of an array with one element.
            patch(tensor, *args)
            tensor.__index__ = lambda self: int(self.handle.data.item())

        interpreter._patch_lang_tensor = with_loops

    def _interpret(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        args, kwargs = tuple(map(alias, args)), {name: alias(v) for name, v in kwargs.items()}
        given = [
            value
            for value in (*args, *kwargs.values())
            if isinstance(value, torch.Tensor) and value.numel()
        ]
        if not given:
            return
        if not self._layer.captures():
            self._run(kernel, grid, args, kwargs, given)
            return
        self._layer.know(given, False)
        self._layer.replayed(lambda: self._run(kernel, grid, args, kwargs, given))

    def _run(self, kernel: Any, grid: Any, args: tuple, kwargs: dict, given: list) -> None:
        """Interpret a launch, and say what is known then of the tensors that it was `given`, by their aliases."""
        knows = self._layer.knows
        launch = self._here.launch = _Launch(given)
        try:
            with self._layer.aside(), torch.device("cpu"), _language_kept():
                self._function(kernel).run(*args, grid=grid, warmup=False, **kwargs)
        except Exception as e:  # whatever the interpreter does not know, it says in its own way
            name = getattr(kernel.fn, "__name__", "a kernel")
            why = "takes too long in" if "_TooLong" in repr(e) else "cannot be run by"
            self._layer.assumptions.add(
                "value",
                f"the Triton kernel {name} {why} Triton's interpreter: {_last(e)}",
                user_line(),
            )
            self._layer.know(given, False)
            return
        finally:
            self._here.launch = None
        known = all(knows([t]) for t, read in zip(given, launch.loaded, strict=True) if read)
        # What is written in part is no more known than before.
        written = [
            t
            for t, count in zip(given, launch.stored, strict=True)
            if count and (not known or count >= t.numel() or knows([t]))
        ]
        self._layer.know(written, known)

    def compute_compiled(self, operator: str, **given: Any) -> Any:
        """A kernel of the script's within compiled code, whose tensors are on the CPU; raise where it cannot be interpreted."""
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        kernel = kernel_side_table.get_kernel(given["kernel_idx"])
        arguments = {
            **given["kwargs"],
            **kernel_side_table.get_constant_args(given["constant_args_idx"]),
        }
        made = {}
        if "functional" in operator:
            made = {name: arguments[name].clone() for name in given["tensors_to_clone"]}
            arguments.update(made)
        if hasattr(
            kernel, "configs"
        ):  # an `Autotuner`: any of its configurations computes the same
            arguments.update(kernel.configs[0].all_kwargs())
            kernel = kernel.fn
        self._here.launch = _Launch([t for t in arguments.values() if isinstance(t, torch.Tensor)])
        try:
            with _language_kept():
                self._function(kernel).run(grid=given["grid"][0], warmup=False, **arguments)
        finally:
            self._here.launch = None
        return made


@contextlib.contextmanager
def _language_kept() -> Iterator[None]:
    """The interpreter replaces functions of the language, and does not put all of them back for the compiler."""
    modules = [
        module for name, module in list(sys.modules.items()) if name.startswith("triton.language")
    ]
    places: dict[int, Any] = {id(place): place for place in modules}
    for module in modules:
        places.update((id(v), v) for v in vars(module).values() if isinstance(v, type))
    kept = [(place, dict(vars(place))) for place in places.values()]
    try:
        yield
    finally:
        for place, before in kept:
            for name, value in list(vars(place).items()):
                if name not in before:
                    delattr(place, name)
                elif value is not before[name]:
                    setattr(place, name, before[name])


def _last(e: BaseException) -> str:
    """What it says, in a line."""
    return (str(e).splitlines() or [type(e).__name__])[0][:120]
