"""Values of `torch.compile`d code: the graph that Inductor compiles is computed on the CPU, node by node.

What was compiled runs as ever, for its memory, and its kernels do nothing. Before that the same graph is computed over the bytes that
stand for device memory, by the CPU's operators and those that stand in for what only CUDA has; then the results are written where the
compiled code left its own. Random numbers are those that its kernels draw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph._older_python import zip
from oomph._user_code import user_line
from oomph._virtual_gpu.device_memory import cpu_alias
from oomph._virtual_gpu.dispatch import is_view
from oomph._virtual_gpu.graph_values import alias
from oomph._virtual_gpu.random_numbers import Numbers, of_triton

Function = Callable[..., Any]


class CompiledCode:
    """Computes for one `ValueLayer`."""

    def __init__(self, layer: Any, triton: Any) -> None:
        """From the import of Inductor on; `triton` interprets the script's own kernels."""
        self._layer = layer
        self._triton = triton
        on_import("torch._inductor.compile_fx", self._watch)

    def _watch(self, compile_fx: Any) -> None:
        # What comes from this cache comes without its graph.
        with_cache = torch._functorch.config
        if hasattr(with_cache, "enable_autograd_cache"):
            with_cache.enable_autograd_cache = False
        compile_graph = getattr(compile_fx, "_compile_fx_inner", None)
        if compile_graph is None:
            return

        @functools.wraps(compile_graph)
        def compile_and_keep(graph: Any, *args: Any, **kwargs: Any) -> Any:
            kept = _copy(graph)
            compiled = compile_graph(graph, *args, **kwargs)
            run = getattr(compiled, "current_callable", None)
            if run is not None:
                compiled.current_callable = functools.partial(self._run, run, kept)
            return compiled

        compile_fx._compile_fx_inner = compile_and_keep

    def _run(self, run: Function, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """What compiled code gives for `inputs`, a list that it empties."""
        layer = self._layer
        given = [alias(value) for value in inputs]
        on_gpu = [at for at, value in enumerate(inputs) if _is_on_gpu(value)]
        read = [given[at] for at in on_gpu]
        changed = [given[at] for at in _changed(graph) if at in on_gpu]
        if layer.captures():
            with layer.memory_alone():
                outs = run(inputs)
            self._replay(graph, given, read, changed, outs)
            return outs
        # The numbers that it draws follow from where the generator stands before it runs.
        device = next((inputs[at].device.index for at in on_gpu), torch.cuda.current_device())
        numbers = Numbers(torch.cuda.default_generators[device])
        results = self._compute(graph, given, read, numbers)
        after = [] if results is None else [(t, t.clone()) for t in changed]
        with layer.memory_alone():
            outs = run(inputs)
        for t, values in after:
            t.copy_(values)
        known = results is not None and numbers.are_drawn() and _write(outs, results)
        layer.know(changed + [alias(out) for out in outs if _is_on_gpu(out)], known)
        return outs

    def _replay(self, graph: Any, given: list, read: list, changed: list, outs: Any) -> None:
        """Compute in each replay what is captured now."""
        layer, places = self._layer, [alias(out) for out in outs]
        written = changed + [alias(out) for out in outs if _is_on_gpu(out)]
        layer.know(written, False)

        def replay() -> None:
            results = self._compute(graph, given, read, None)
            layer.know(written, results is not None and _write(places, results))

        layer.replayed(replay)

    def _compute(
        self, graph: Any, given: list, read: list, numbers: Numbers | None
    ) -> list[Any] | None:
        """The results on the CPU, of tensors there, of which `read` stand for the GPU's; None if they are unknown."""
        layer = self._layer
        if not layer.knows([*read, *(alias(t) for t in _constants(graph) if t.is_cuda)]):
            return None
        try:
            with layer.aside(), torch.no_grad(), torch.device("cpu"):
                return list(_OnCpu(graph, layer, self._triton, numbers).run(*given))
        except Exception as e:  # whatever an operator of the CPU raises
            why = (str(e).splitlines() or [type(e).__name__])[0][:120]
            layer.assumptions.add(
                "value", f"compiled code cannot be computed on the CPU: {why}", user_line()
            )
            return None


def _write(outs: Any, results: list[Any]) -> bool:
    """Whether all tensors of `outs` got their values."""
    for out, result in zip(outs, results, strict=True):
        if not isinstance(out, torch.Tensor):
            continue
        place = cpu_alias(out) if out.is_cuda else out
        if result is None:
            continue  # what no program reads: random states, logarithms of sums for the backward pass
        if not isinstance(result, torch.Tensor) or place.shape != result.shape:
            return False
        if place.data_ptr() != result.data_ptr():
            place.copy_(result)
    return True


class _OnCpu(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph of operators on the CPU."""

    def __init__(
        self, graph: Any, layer: Any, triton: Any, numbers: Numbers | None, part: bool = False
    ) -> None:
        """`part` of a graph's: a function that an operator of it calls."""
        super().__init__(graph)
        self._layer, self._triton, self._numbers = layer, triton, numbers
        self._part = part
        self._wanted: Any = None

    def run_node(self, n: torch.fx.Node) -> Any:
        self._wanted = None if self._part else n.meta.get("val")
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.fx.GraphModule):
            return _OnCpu(found, self._layer, self._triton, self._numbers, part=True).run
        return alias(found)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(target, "__name__", "")
        if isinstance(target, torch._ops.OpOverload):
            name = target._schema.name.rsplit("::")[-1]
            if name in ("inductor_seeds", "inductor_seed", "inductor_random", "inductor_randint"):
                return self._drawn(name, args)
            found = self._layer.compute_apart(target, args, kwargs, self._numbers)
            return found if is_view(target._schema) else _as(found, self._wanted)
        if name.startswith("triton_kernel_wrapper"):
            return self._triton.compute_compiled(name, **kwargs)
        return super().call_function(target, args, kwargs)

    def _drawn(self, name: str, args: Any) -> torch.Tensor:
        """What Inductor's own operators draw."""
        if name == "inductor_random":
            size, seed, mode = args
            return of_triton(mode, size, int(seed))
        if name == "inductor_randint":
            low, high, size, seed = args
            return of_triton("randint", size, int(seed), low, high)
        if self._numbers is None:
            raise ValueError("random numbers of compiled code in a captured graph")
        return (
            self._numbers.seeds(args[0]) if name == "inductor_seeds" else self._numbers.seeds(1)[0]
        )


def _as(found: Any, wanted: Any) -> Any:
    """Results of the types and strides that the graph has, on which its views rest."""
    if isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return type(found)(map(_as, found, wanted))
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return found
    if found.layout is not torch.strided or found.shape != wanted.shape:
        return found
    strides = wanted.stride()
    if found.dtype == wanted.dtype and found.stride() == strides:
        return found
    return torch.empty_strided(found.shape, strides, dtype=wanted.dtype).copy_(found)


def _copy(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Inductor changes the graph while it compiles it."""
    copied = torch.fx.Graph()
    out = copied.graph_copy(graph.graph, {}, return_output_node=True)
    assert out is not None
    copied.output(out[0])
    return torch.fx.GraphModule(graph, copied)


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _constants(graph: torch.fx.GraphModule) -> Iterator[Any]:
    for node in graph.graph.find_nodes(op="get_attr"):
        value = graph
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.Tensor):
            yield value


def _changed(graph: torch.fx.GraphModule) -> list[int]:
    """Which inputs of a graph it changes, or may change."""
    places = {node: at for at, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    found: set[int] = set()
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema
            for at, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
                    found.update(places[v] for v in _nodes(value) if v in places)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            found.update(places[v] for v in node.all_input_nodes if v in places)
    return sorted(found)


def _nodes(value: Any) -> Iterator[torch.fx.Node]:
    if isinstance(value, torch.fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes(item)
