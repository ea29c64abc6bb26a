"""`torch.func.vmap` runs a part of the mapped dimension at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import apis
from torch._functorch import vmap as functorch
from torch.utils._pytree import tree_flatten, tree_unflatten

from oomph._older_python import zip
from oomph._random_states import RandomStates
from oomph._user_functions import in_transform
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job

_COPIED = 16 << 20
"""Bytes of the largest argument whose parts are copied."""
_UNMAPPED = -1
"""The dimension of an output that is mapped along none."""


class ChunkedVmap(Lever):
    """Runs the outermost `vmap` in parts of its mapped dimension, and each part again in the backward pass.

    Needs: `torch.func.vmap`, or `torch.vmap`. Changes: what is computed inside exists for one part at a time; arguments and results
    stay whole. With gradients there is one more forward pass. Results: to rounding; gradients of what is not mapped are summed over
    the parts.

    Refused by name: `randomness="different"` where something is drawn (other numbers would be), changes of what comes from outside
    (`x += 1` of an argument or of what the function closes over), tensors from outside that were computed with gradients and are no
    arguments, and gradients of gradients of the results. A function that keeps lists or counts of its own does so for each part.
    """

    name = "chunked_vmap"

    def __init__(self, parts: int) -> None:
        """`parts`: how many."""
        super().__init__()
        if parts < 2:
            raise self.refuse(f"parts is {parts}; at least 2 are needed")
        self.parts = parts
        self.known: set[Any] = set()
        """Functions of which a call was watched: they change nothing from outside."""

    def install(self, job: Job) -> None:
        """In place of what all `vmap`s call."""
        original = getattr(apis, "vmap_impl", None)
        if original is None:
            raise self.refuse(f"torch {torch.__version__} has no {apis.__name__}.vmap_impl")

        @functools.wraps(original)
        def vmap(
            func: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, *args: Any, **kwargs: Any
        ) -> Any:  # fmt: skip
            within = in_transform()
            if within or chunk_size is not None or torch.compiler.is_compiling():
                return original(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
            return self._run(original, func, in_dims, out_dims, randomness, args, kwargs)

        apis.vmap_impl = vmap

    def finish(self) -> None:
        """Say that nothing ran in parts."""
        if not self.applied:
            self.add_note(f"no outermost vmap over {self.parts} entries or more was called")

    def _run(
        self,
        original: Callable[..., Any],
        func: Any,
        in_dims: Any,
        out_dims: Any,
        randomness: str,
        args: tuple,
        kwargs: dict,
    ) -> Any:
        size, dims, flat, spec = functorch._process_batched_inputs(in_dims, args, func)
        if size < self.parts:
            return original(func, in_dims, out_dims, randomness, None, *args, **kwargs)

        def part(given: list[Any]) -> Any:
            again = tree_unflatten(given, spec)
            return original(func, in_dims, out_dims, randomness, None, *again, **kwargs)

        call = _Call(self, part, dims, out_dims, randomness, size)
        self._watch(func, call, flat)
        result = call.forward(flat)
        self.applied += 1
        return result

    def _watch(self, func: Any, call: _Call, flat: list[Any]) -> None:
        """Look at one entry of the first call of each function: whether it changes what comes from outside."""
        key = getattr(func, "__code__", func)
        if key in self.known:
            return
        self.known.add(key)
        states = RandomStates()
        with torch.no_grad(), _Changes(self, flat):
            call.part(call.arguments(flat, slice(0, 1)))
        states.restore()


class _Changes(torch.utils._python_dispatch.TorchDispatchMode):
    """Refuses operators that change what was there before."""

    def __init__(self, lever: ChunkedVmap, given: list[Any]) -> None:
        super().__init__()
        self._lever = lever
        self._made: set[int] = set()
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_flatten((args, kwargs))[0]
        if func._schema.is_mutable:
            written = (
                args[at] if at < len(args) else kwargs.get(one.name)
                for at, one in enumerate(func._schema.arguments)
                if one.alias_info is not None and one.alias_info.is_write
            )
            if any(
                _storage(t) not in self._made
                for t in tree_flatten(list(written))[0]
                if _is_tensor(t)
            ):
                raise self._lever.refuse(
                    f"the function changes a tensor from outside ({func._schema.name}), which each part would do again", manually=True
                )  # fmt: skip
        before = {_storage(t) for t in given if _is_tensor(t)} - self._made
        result = func(*args, **kwargs)
        for t in tree_flatten(result)[0]:
            if _is_tensor(t) and _storage(t) not in before:
                self._made.add(_storage(t))
                self._alive.append(t)  # its address is no other's meanwhile
        return result


class _Call:
    """One call of a mapped function: `part(arguments)` is the call of some of the entries."""

    def __init__(
        self,
        lever: ChunkedVmap,
        part: Callable[[list[Any]], Any],
        dims: list[int | None],
        out_dims: Any,
        randomness: str,
        size: int,
    ) -> None:
        self.lever, self.part, self.dims, self.size = lever, part, dims, size
        self._out_dims, self._randomness = out_dims, randomness
        self._copies: list[torch.Tensor] = []
        self.autocast = Autocast("cuda", "cpu")
        self.states: RandomStates | None = None
        """Before the first part, if a part has drawn."""
        self.spec: Any = None
        self.places: list[int] = []
        """The mapped dimension of each result."""

    def slices(self) -> Iterator[slice]:
        """The parts."""
        parts = self.lever.parts
        for index in range(parts):
            yield slice(self.size * index // parts, self.size * (index + 1) // parts)

    def arguments(self, flat: list[Any], part: slice) -> list[Any]:
        """Those of one part. Nested derivatives of a view crash on the virtual GPU, so small ones are copied; the copies stay
        until the call ends, as weights that are gone would end a step of a script without an optimizer."""
        given: list[Any] = []
        for t, dim in zip(flat, self.dims, strict=True):
            if dim is not None:
                is_small = t.nbytes <= _COPIED
                t = t.narrow(dim, part.start, part.stop - part.start)
                if is_small:
                    t = t.clone()
                    self._copies.append(t)
            given.append(t)
        return given

    def forward(self, flat: list[Any]) -> Any:
        """The results of all parts, joined."""
        states = RandomStates()
        differentiates = torch.is_grad_enabled()
        plain = [t.detach() if _is_tensor(t) else t for t in flat]
        wanted = [_is_tensor(t) and t.requires_grad and differentiates for t in flat]
        outside: dict[int, torch.Tensor] = {}
        whole: list[Any] = []
        trained: list[bool] = []
        for number, part in enumerate(self.slices()):
            if number and self.states is not None:
                self.states.restore()  # of the same numbers for all entries
            leaves = self._leaves(plain, wanted, part)
            results = self._compute(leaves)
            if not number:
                trained = [t.requires_grad for t in results]
                whole = [self._room(t, dim) for t, dim in zip(results, self.places, strict=True)]
                if states.has_drawn():
                    self._draws(states)
            if differentiates:
                for t in self._outside(results, leaves):
                    outside[id(t)] = t
            self._put(whole, results, part)
            del results
        self._copies.clear()
        tensors = [t for t, is_wanted in zip(flat, wanted, strict=True) if is_wanted]
        tensors += outside.values()
        if any(trained):
            found = _Parts.apply(self, plain, wanted, trained, whole, *tensors)
            whole = list(found)
        return tree_unflatten(whole, self.spec)

    def _draws(self, states: RandomStates) -> None:
        if self._randomness != "same":
            raise self.lever.refuse(
                'the function draws random numbers for each entry (randomness="different"), which would be others in parts'
            )
        self.states = states

    def _leaves(self, plain: list[Any], wanted: list[bool], part: slice) -> list[Any]:
        given = self.arguments(plain, part)
        return [
            t.detach().requires_grad_() if is_wanted else t
            for t, is_wanted in zip(given, wanted, strict=True)
        ]

    def _compute(self, leaves: list[Any]) -> list[torch.Tensor]:
        """The results of one part, flat."""
        # A cast that is kept would belong to the first part's graph.
        self._first = _next_node()
        with self.autocast.again(caches=False):
            result = self.part(leaves)
        flat, self.spec = tree_flatten(result)
        dims = functorch._broadcast_to_and_flatten(self._out_dims, self.spec) or []
        self.places = [
            _UNMAPPED if dim is None else dim % t.dim() for t, dim in zip(flat, dims, strict=True)
        ]
        return flat

    def _room(self, result: torch.Tensor, dim: int) -> torch.Tensor:
        if dim == _UNMAPPED:
            return result.detach()
        shape = list(result.shape)
        shape[dim] = self.size
        # In its order of dimensions.
        strides = result.stride()
        order = sorted(range(result.dim()), key=lambda at: -strides[at])
        room = torch.empty([shape[at] for at in order], dtype=result.dtype, device=result.device)
        return room.permute([order.index(at) for at in range(len(order))])

    def _put(self, whole: list[Any], results: list[torch.Tensor], part: slice) -> None:
        for room, result, dim in zip(whole, results, self.places, strict=True):
            if dim != _UNMAPPED:
                room.narrow(dim, part.start, part.stop - part.start).copy_(result.detach())

    def _outside(self, results: list[torch.Tensor], leaves: list[Any]) -> list[torch.Tensor]:
        """The leaves of the graph of a part that are none of its arguments: what the function closes over."""
        own = {id(t) for t in leaves if _is_tensor(t)}
        found: list[torch.Tensor] = []
        nodes = [t.grad_fn for t in results if t.grad_fn is not None]
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            if node.name().endswith("AccumulateGrad"):
                if id(node.variable) not in own:
                    found.append(node.variable)
                continue
            if node._sequence_nr() < self._first:
                raise self.lever.refuse(
                    "the function closes over a tensor that was computed with gradients: give it as an argument, with in_dims=None",
                    manually=True,
                )
            for child, _ in node.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    nodes.append(child)
        return found

    def again(
        self, plain: list[Any], wanted: list[bool], part: slice
    ) -> tuple[list[Any], list[torch.Tensor]]:
        """The arguments of one part that need gradients, and its results, computed with a graph."""
        self._copies.clear()
        leaves = self._leaves(plain, wanted, part)
        if self.states is not None:
            self.states.restore()
        try:
            with torch.enable_grad():
                results = self._compute(leaves)
        finally:
            if self.states is not None:
                self.states.put_back()
        return [t for t, is_wanted in zip(leaves, wanted, strict=True) if is_wanted], results


class _Parts(torch.autograd.Function):
    """Results that are there already; their gradients are computed part by part."""

    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        plain: list[Any],
        wanted: list[bool],
        trained: list[bool],
        whole: list[torch.Tensor],
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.call, ctx.wanted, ctx.trained = call, wanted, trained
        ctx.others = [None if _is_tensor(t) else t for t in plain]
        ctx.are_tensors = [_is_tensor(t) for t in plain]
        ctx.save_for_backward(*(t for t in plain if _is_tensor(t)), *tensors)
        ctx.mark_non_differentiable(
            *(t for t, is_trained in zip(whole, trained, strict=True) if not is_trained)
        )
        ctx.set_materialize_grads(False)
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call: _Call = ctx.call
        if torch.is_grad_enabled():
            raise call.lever.refuse("gradients of gradients of the results are asked for")
        saved = list(ctx.saved_tensors)
        count = sum(ctx.are_tensors)
        given = iter(saved[:count])
        plain = [
            next(given) if is_tensor else other
            for is_tensor, other in zip(ctx.are_tensors, ctx.others, strict=True)
        ]
        tensors = saved[count:]
        arguments = sum(ctx.wanted)
        outside = tensors[arguments:]
        dims = [dim for dim, is_wanted in zip(call.dims, ctx.wanted, strict=True) if is_wanted]
        dims += [None] * len(outside)
        sums: list[Any] = [None] * len(tensors)
        for number, part in enumerate(call.slices()):
            leaves, results = call.again(plain, ctx.wanted, part)
            roots, given_roots = [], []
            for result, gradient, dim in zip(results, gradients, call.places, strict=True):
                if gradient is None or not result.requires_grad:
                    continue
                if dim == _UNMAPPED:
                    if number:
                        continue  # it is the same for all entries: the first part's was returned
                else:
                    gradient = gradient.narrow(dim, part.start, part.stop - part.start)
                roots.append(result)
                given_roots.append(gradient)
            if not roots:
                continue
            found = torch.autograd.grad(roots, [*leaves, *outside], given_roots, allow_unused=True)
            for at, (gradient, dim) in enumerate(zip(found, dims, strict=True)):
                sums[at] = _add(sums[at], gradient, tensors[at], dim, part)
        return None, None, None, None, None, *sums


def _add(total: Any, gradient: Any, of: torch.Tensor, dim: int | None, part: slice) -> Any:
    """The gradient so far of a tensor, with that of one more part."""
    if gradient is None:
        return total
    if dim is not None:
        if total is None:
            total = torch.zeros_like(of)
        total.narrow(dim, part.start, part.stop - part.start).copy_(gradient)
        return total
    # Not in place: terms of one sum share their gradient.
    return gradient if total is None else total + gradient


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _next_node() -> int:
    """The number of the next node of the graph."""
    with torch.enable_grad():
        node = torch.zeros((), device="cpu", requires_grad=True).view(()).grad_fn
    return 0 if node is None else node._sequence_nr()


LEVER = ChunkedVmap
