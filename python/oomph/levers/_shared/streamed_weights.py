"""Keeps weights of chosen modules in pinned host memory, and on the GPU for their forward only."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch

from oomph import _torch_features as torch_features
from oomph._older_python import zip
from oomph.levers._shared.base import Lever, failure
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.host_copies import base
from oomph.levers._shared.job import Job, names
from oomph.levers._shared.quantized_linear import QuantizedLinear
from oomph.levers._shared.recomputation import has_saved_tensor_hooks, without_graph
from oomph.levers._shared.streams import aligned, copy_stream

SMALLEST = 4 << 10
"""Bytes below which a tensor stays on the GPU."""

STREAMED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
"""Modules whose weights are on the GPU for their forward only, and their parts."""

SLOTS = 2
"""Modules whose weights are on the GPU at a time: the one that runs, and the next."""


class StreamedWeights(Lever):
    """Keeps weights of modules on the host, and copies them to the GPU ahead of their module's forward.

    A module's weights are one buffer, and one copy. Weights that other modules use too stay on
    the GPU, as does the model's first parameter, which scripts use to find the device.
    """

    trains: ClassVar[bool] = False
    """Whether the job trains: a graph may need weights again, in another order."""

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
        self.modules = modules
        self.blocks: weakref.WeakKeyDictionary[torch.nn.Module, Block] = weakref.WeakKeyDictionary()
        """By the module that runs."""
        self.owners: weakref.WeakKeyDictionary[torch.nn.Module, Block] = weakref.WeakKeyDictionary()
        """By the parts of those modules."""
        self.sequence: list[weakref.ref[Block]] = []
        self.used: set[str] = set()
        self.bytes = 0
        self.stage: Stage | None = None
        self.note = "none of the modules was called"

    def install(self, job: Job) -> None:
        """Where a model moves to the GPU, or is first called."""
        job.on_move.append(self._move)
        job.on_model.append(self._model)
        original, lever = torch.nn.Module._apply, self

        @functools.wraps(original)
        def apply(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
            block = lever.owners.get(module) if job._moving else None
            if block is None:
                return original(module, fn, recurse)
            for child in module.children() if recurse else ():
                child._apply(fn)
            with block.hidden(module):
                return original(module, fn, recurse=False)

        torch.nn.Module._apply = apply  # type: ignore[method-assign]

    def _move(self, root: torch.nn.Module, device: torch.device) -> None:
        """Before `root` goes to the GPU: the modules' weights will not."""
        self._take(root, matching(root, self.modules))

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        self._take(root, self.places.take(named))

    def _take(self, root: torch.nn.Module, found: dict[str, torch.nn.Module]) -> None:
        if not found or any(p.is_meta for p in root.parameters()):
            return
        stays = _shared(root)
        first = next(root.parameters(), None)
        if first is not None:
            stays.add(id(first))
        for name, module in found.items():
            if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
                raise self.refuse(
                    f"{name} contains a recurrent layer, whose weights cuDNN keeps in one buffer",
                    modules=[name],
                )
            if module in self.owners:
                continue
            block = Block(module, name, lambda kind, tensor: self._goes(kind, tensor, stays))
            if not block.places:
                continue
            self.blocks[module] = block
            self.owners.update({part: block for part in module.modules()})
            STREAMED.update(module.modules())
            self.sequence.append(weakref.ref(block))
            around_forward(module, self._around, self.order)

    def _goes(self, kind: str, tensor: torch.Tensor, stays: set[int]) -> bool:
        """Whether a tensor in `_parameters` or `_buffers` goes; `stays` are the ids of those that others need, too."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        return plain and id(tensor) not in stays and tensor.nbytes >= SMALLEST

    def _around(
        self, module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        block = self.blocks.get(module)
        if block is None:
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            why = f"{block.name} is compiled, which fixes the addresses of its weights"
            raise self.refuse(why, modules=[block.name])
        device = _device_of((args, kwargs))
        if device is None:
            raise self.refuse(
                f"{block.name} is called without a tensor that shows its device",
                modules=[block.name],
            )
        block.settle()
        if block.is_stale():
            block.pack()
        living = [other for ref in self.sequence if (other := ref()) is not None]
        stage = self.stage
        if stage is None or stage.device != device or 0 < stage.largest < block.bytes:
            if stage is not None:
                stage.settle()
            largest = 0 if self.trains else max(other.bytes for other in living)
            stage = self.stage = Stage(device, largest)
        # As the plan lists them; what infers goes round and round, and a backward pass goes back.
        index = living.index(block) + 1
        following = None if self.trains and index == len(living) else living[index % len(living)]
        slot = stage.enter(block, following)
        try:
            with self._saving(stage, block, slot):
                return forward(*args, **kwargs)
        finally:
            stage.leave(block)
            if block.name not in self.used:
                self.used.add(block.name)
                self.bytes += block.bytes

    def _saving(self, stage: Stage, block: Block, slot: int) -> contextlib.AbstractContextManager:
        """Around the forward of `block`, whose weights are in this slot."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Count the modules that were streamed."""
        self.applied = len(self.used)
        if self.applied:
            self.note = None
            self.add_note(f"{self.bytes / 2**20:.0f} MiB of weights are in host memory")
        if problem := self.places.problem():
            self.add_note(problem)


class Block:
    """One module's weights, in one buffer of host memory."""

    def __init__(
        self, module: torch.nn.Module, name: str, goes: Callable[[str, torch.Tensor], bool]
    ) -> None:
        """`goes` chooses the tensors."""
        self.name = name
        self.written = 0
        """How often what is on the host was written to by a lever, which the weights' own versions do not count."""
        self.places: list[tuple[weakref.ref[torch.nn.Module], str, str]] = []
        """Where the tensors are: module, `_parameters` or `_buffers`, name."""
        for part in module.modules():
            for kind in ("_parameters", "_buffers"):
                for key, tensor in getattr(part, kind).items():
                    if tensor is not None and goes(kind, tensor):
                        self.places.append((weakref.ref(part), kind, key))
        if self.places:
            self.pack()

    def slots(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The dictionaries that hold the tensors, and their names there."""
        for reference, kind, key in self.places:
            yield getattr(reference(), kind), key

    def tensors(self) -> list[torch.Tensor]:
        """As they are now."""
        return [held[key] for held, key in self.slots()]

    def put(self, tensors: list[torch.Tensor]) -> None:
        """Let the modules compute with these."""
        for (held, key), tensor in zip(self.slots(), tensors, strict=True):
            held[key] = tensor

    def pack(self) -> None:
        """Put the weights into one piece of pinned memory, from wherever they are."""
        self.home, self.offsets, self.bytes = self.tensors(), [], 0
        for tensor in self.home:
            self.offsets.append(self.bytes)
            self.bytes += aligned(tensor.nbytes)
        # Persistent tensors must not become inference tensors if inference mode is on.
        with torch.inference_mode(False), torch.no_grad():
            # As floats: the virtual GPU computes integral tensors.
            self.flat = torch.empty(
                self.bytes // 4, dtype=torch.float32, pin_memory=torch.cuda.is_available()
            )
            for tensor, view in zip(self.home, self.views(self.flat), strict=True):
                view.copy_(tensor)
                # The parameter stays the same object: other references find it on the CPU.
                tensor.data = view

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The weights in `flat`, which has their bytes."""
        return [self.view(flat, index) for index in range(len(self.home))]

    def view(self, flat: torch.Tensor, index: int) -> torch.Tensor:
        """One of them."""
        offset, like = self.offsets[index], self.home[index]
        part = flat[offset // 4 : offset // 4 - (-like.nbytes // 4)].view(like.dtype)
        return part[: like.numel()].view(like.shape)

    def settle(self) -> None:
        """Layers of 8 bits take over what was written to their weights (`int8_linear`)."""
        for reference, _, _ in self.places:
            part = reference()
            if isinstance(part, QuantizedLinear):
                part.settle()

    def is_stale(self) -> bool:
        """Whether the script replaced or cast the weights since they were packed."""
        pointer = self.flat.data_ptr()
        return any(
            tensor is not home or tensor.data_ptr() != pointer + offset
            for tensor, home, offset in zip(self.tensors(), self.home, self.offsets, strict=True)
        )

    def version(self) -> tuple[int, ...]:
        """Changes whenever the weights are written to, but through `.data`."""
        own = (0 if tensor.is_inference() else tensor._version for tensor in self.home)
        return (self.flat.data_ptr(), self.written, *own)

    @contextlib.contextmanager
    def hidden(self, module: torch.nn.Module) -> Iterator[None]:
        """Without those of the weights that are `module`'s own."""
        mine = [(getattr(module, kind), key) for ref, kind, key in self.places if ref() is module]
        held = [tensors[key] for tensors, key in mine]
        for tensors, key in mine:
            tensors[key] = None
        try:
            yield
        finally:
            for (tensors, key), tensor in zip(mine, held, strict=True):
                tensors[key] = tensor


class Stage:
    """The GPU's side: memory for the weights of two modules, and a stream to bring them."""

    def __init__(self, device: torch.device, largest: int) -> None:
        """`largest`: bytes of the largest module; 0 takes new memory for each, so that what still refers to the weights of one
        never sees another's."""
        self.device = device
        self.largest = largest
        # Not inference tensors: the next call may be outside inference mode.
        with torch.inference_mode(False):
            self.slots = [
                torch.empty(largest // 4, dtype=torch.float32, device=device) for _ in range(SLOTS)
            ]
        cuda = device.type == "cuda"
        self.stream = copy_stream(device) if cuda else None
        self.holds: list[Block | None] = [None] * SLOTS
        self.versions: list[Any] = [None] * SLOTS
        self.came: list[Any] = [None] * SLOTS
        self.done: list[Any] = [None] * SLOTS
        self.running: list[int] = []
        self.recent = (0, 0)
        """Ids of the last two modules whose weights were needed,"""
        self.next: dict[tuple[int, int], weakref.ref[Block]] = {}
        """and whose were needed after two such modules: backward passes go the other way."""
        if cuda:
            # The slots' memory may have been another tensor's, which kernels still use.
            self.stream.wait_stream(torch.cuda.current_stream(device))

    def enter(self, block: Block, following: Block | None) -> int:
        """Let `block` compute with its weights on the GPU; the slot where they are. `following` is thought to come next."""
        slot = self.hold(block)
        self.running.append(slot)
        block.put(block.views(self.slots[slot]))
        self.prefetch(block, following)
        return slot

    def hold(self, block: Block) -> int:
        """Ensure that the weights of `block` are on the GPU; the slot where they are."""
        if block in self.holds:
            slot = self.holds.index(block)
            if self.versions[slot] != block.version():
                self.holds[slot] = None  # written to since it was brought
        if block not in self.holds:
            self._bring(block)
        slot = self.holds.index(block)
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(self.came[slot])
            if not self.largest:
                self.slots[slot].record_stream(current)
        return slot

    def prefetch(self, block: Block, following: Block | None = None) -> None:
        """`block` computes: bring what came next the last time, or `following`."""
        if self.recent[1] == id(block):
            return
        self.next[self.recent] = weakref.ref(block)
        self.recent = self.recent[1], id(block)
        known = self.next.get(self.recent)
        following = (known() if known is not None else None) or following
        if (
            following is not None
            and following not in self.holds
            and len(self.running) < SLOTS
            and not following.is_stale()
        ):
            self._bring(following)

    def leave(self, block: Block) -> None:
        """The weights of `block` are no longer needed."""
        slot = self.running.pop()
        block.put(block.home)
        if self.stream is not None:
            self.done[slot] = torch.cuda.current_stream(self.device).record_event()

    def settle(self) -> None:
        """The slots' memory may go: nothing is being copied into it."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _bring(self, block: Block) -> None:
        """In place of what was needed longest ago."""
        free = [slot for slot in range(SLOTS) if slot not in self.running]
        age = [0 if held is None else 1 + (id(held) == self.recent[1]) for held in self.holds]
        slot = min(free, key=age.__getitem__)
        with torch.inference_mode(False), torch.no_grad():
            if not self.largest:
                self._renew(slot, block)
            target = self.slots[slot][: block.bytes // 4]
            self.holds[slot], self.versions[slot] = block, block.version()
            if self.stream is None:
                target.copy_(block.flat)
                return
            if self.done[slot] is not None:
                self.stream.wait_event(self.done[slot])
            with torch.cuda.stream(self.stream):
                target.copy_(block.flat, non_blocking=True)
                self.came[slot] = self.stream.record_event()

    def _renew(self, slot: int, block: Block) -> None:
        """New memory, which the computing stream has done with up to here. The old one goes with what still refers to it."""
        current = torch.cuda.current_stream(self.device) if self.stream is not None else None
        if current is not None and self.came[slot] is not None:
            current.wait_event(self.came[slot])  # it may have come in vain
        del self.slots[slot]
        self.slots.insert(
            slot, torch.empty(block.bytes // 4, dtype=torch.float32, device=self.device)
        )
        if current is not None:
            self.done[slot] = current.record_event()


def notes(
    lever: StreamedWeights,
    stage: Stage,
    block: Block,
    slot: int,
    cast: Callable[[torch.Tensor], int | None],
) -> contextlib.AbstractContextManager:
    """Around the forward of `block` with gradients: autograd keeps a note in the place of each weight in this slot. Of a tensor that
    is none `cast` tells of which weight, by its number, it is a copy in another precision."""
    top = torch_features.find("saved_tensor_hooks_top")
    outer = top(False) if top is not None else None
    if top is None and has_saved_tensor_hooks():
        why = f"{block.name} is checkpointed or offloaded, beside which it needs torch 2.8"
        raise lever.refuse(why, modules=[block.name])
    begin, version = stage.slots[slot].data_ptr(), stage.versions[slot]

    def pack(tensor: torch.Tensor) -> Any:
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            if base(tensor) == begin:
                return _Weight(block, version, tensor.dtype, place)
            if (found := cast(tensor)) is not None:
                return _Weight(block, version, tensor.dtype, place, found)
        return without_graph(tensor) if outer is None else outer[0](tensor)

    def unpack(kept: Any) -> torch.Tensor:
        if type(kept) is not _Weight:
            return kept if outer is None else outer[1](kept)
        slot = stage.hold(kept.block)
        if stage.versions[slot] != kept.version:
            raise failure(
                lever.name,
                f"weights of {block.name} were changed before the backward pass that needs them",
            )
        stage.prefetch(kept.block)
        if kept.number is not None:
            with torch.no_grad():
                weight = kept.block.view(stage.slots[slot], kept.number)
                offset, shape, strides = kept.place
                return weight.to(kept.dtype).as_strided(shape, strides, offset)
        like = torch.empty(0, dtype=kept.dtype, device=stage.device)
        return like.set_(stage.slots[slot].untyped_storage(), *kept.place)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class _Weight(NamedTuple):
    """What autograd keeps in place of a weight."""

    block: Block
    version: tuple[int, ...]
    dtype: torch.dtype
    place: tuple[Any, ...]
    """Offset, shape and strides."""
    number: int | None = None
    """Which of the module's weights is cast to that type; None: it is as it is."""


def matching(root: torch.nn.Module, modules: list[str]) -> dict[str, torch.nn.Module]:
    """The modules of `root` that a plan names by the model that is called, which `root` need not be:
    it may be a part of that model, or hold it."""
    named, own = names(root), dict(root.named_modules())
    found = {}
    for name in modules:
        title, _, path = name.partition(".")
        steps = path.split(".")
        tails = [".".join(steps[index:]) for index in range(1, len(steps) - 1)]
        holders = [
            above
            for above, module in own.items()
            if above and type(module).__name__ == title and f"{above}.{path}" in own
        ]
        if name in named:
            found[name] = named[name]
        elif len(holders) == 1:
            found[name] = own[f"{holders[0]}.{path}"]
        elif tail := next((tail for tail in tails if tail in own), ""):
            found[name] = own[tail]
    return found


def _shared(root: torch.nn.Module) -> set[int]:
    """Tensors that several modules of `root` use."""
    count: dict[int, int] = {}
    for module in root.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                count[id(tensor)] = count.get(id(tensor), 0) + 1
    return {number for number, uses in count.items() if uses > 1}


def _device_of(value: Any) -> torch.device | None:
    """The device of the first tensor in nested arguments."""
    if isinstance(value, torch.Tensor):
        return value.device
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        for item in items:
            if (device := _device_of(item)) is not None:
                return device
    return None
