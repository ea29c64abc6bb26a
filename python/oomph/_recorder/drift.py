"""Measures how far a plan changes a script's results: `oomph drift` runs it twice with the same seeds.

The plain run stores the inputs and outputs of its first model calls; the planned run compares. Layers
are compared too, by a sample of their values in the first call, to follow the error
from layer to layer. Memory is not recorded here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from oomph._older_python import zip
from oomph._protocol import File, RunDirectory, Settings, open_private

WHOLE = 1 << 24
"""Outputs up to this size are kept whole; of larger ones, an evenly spread sample of this size."""

SAMPLE = 1 << 14
"""Values of a layer's input and output that are kept."""

LAYERS = 5
"""The most layers to name."""

CLASSES = 2
"""The smallest last dimension for which the largest entry is compared."""

VOCABULARY = 256
"""The smallest last dimension that counts as a vocabulary."""


class CallsDone(SystemExit):
    """Ends the script after the requested number of calls, as `sys.exit(0)` would."""

    def __init__(self) -> None:
        """Exit status 0."""
        super().__init__(0)


class Drift:
    """Takes the recorder's place in a process that measures drift, as `settings.drift` says."""

    def __init__(self, settings: Settings, directory: RunDirectory) -> None:
        """Changes nothing before `start`."""
        assert settings.drift is not None
        self.settings = settings.drift
        self.directory = directory
        self.planned = self.settings.planned
        self.process = os.getpid()
        self.levers: Any = None
        self.calls = 0
        self.outputs: dict[str, OutputDrift] = {}
        self.layers: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.diverged: int | None = None
        self.inside = False
        self.finished = False
        self.has_gpu = torch.cuda.is_available()

    def start(self) -> None:
        """Both runs draw the same numbers; without a GPU, "cuda" is the CPU."""
        torch.manual_seed(0)
        random.seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        if not self.has_gpu:
            from oomph._recorder import cuda_on_cpu

            cuda_on_cpu.install()

    def watch(self) -> None:
        """Around the outermost calls, outside all levers."""
        original = torch.nn.Module.__call__

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.inside or not any(True for _ in module.parameters()):
                return original(module, *args, **kwargs)
            if self.levers is not None:
                # Levers that replace layers must do so now, before there are hooks.
                self.levers.job.meet(module)
            self.inside = True
            given = [_kept(t) for t in _integers((args, kwargs))]
            hooks = self._watch_layers(module) if self.calls == 0 else []
            try:
                output = original(module, *args, **kwargs)
            finally:
                self.inside = False
                for hook in hooks:
                    hook.remove()
            with torch.no_grad(), torch.inference_mode(False):
                self._note(given, output)
            self.calls += 1
            if self.calls >= self.settings.calls:
                raise CallsDone
            return output

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _watch_layers(self, root: torch.nn.Module) -> list[Any]:
        self.seen: dict[str, dict[str, Any]] = {}
        hooks = []
        for name, module in root.named_modules():
            if name and next(module.children(), None) is None:
                hook = functools.partial(self._layer, name)
                hooks.append(module.register_forward_hook(hook))
        return hooks

    def _layer(self, name: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        into = next(_floats(args), None)
        out = next(_floats(output), None)
        if name in self.seen or into is None or out is None:
            return
        self.seen[name] = dict(
            kind=type(module).__name__,
            shapes=(tuple(into.shape), tuple(out.shape)),
            samples=(_sample(into, SAMPLE), _sample(out, SAMPLE)),
        )

    def _note(self, given: list[torch.Tensor], output: Any) -> None:
        tokens = next((t for t in given if t.dim() == 2), None)
        values = {name: KeptValues.of(t, tokens) for name, t in _named("", output)}
        path = self.directory.call(self.calls)
        if not self.planned:
            layers = self.seen if self.calls == 0 else {}
            # Plain tensors and numbers: nothing in such a file can run code when it is read.
            plain = {name: vars(value) for name, value in values.items()}
            with open_private(path) as file:
                torch.save(dict(given=given, values=plain, layers=layers), file)
            return
        if self.diverged is not None or not os.path.exists(path):
            return
        kept = torch.load(path, map_location="cpu", weights_only=True)
        os.remove(path)
        if not _same(given, kept["given"]):
            # The generated tokens differ, and so will everything from here on.
            self.diverged = self.calls
            return
        for name, value in kept["values"].items():
            before = KeptValues(**value)
            after = values.get(name)
            if after is None or after.shape != before.shape:
                self._say(f"{name or 'the output'} has a different shape or is missing")
                continue
            self.outputs.setdefault(name, OutputDrift(name)).compare(before, after)
        if self.calls == 0:
            self._compare_layers(kept["layers"])

    def _compare_layers(self, plain: dict[str, dict[str, Any]]) -> None:
        others = 0
        for name, before in plain.items():
            after = self.seen.get(name)
            if after is None or after["shapes"] != before["shapes"]:
                others += 1
                continue
            into, out = (
                relative(a, b) for a, b in zip(before["samples"], after["samples"], strict=True)
            )
            self.layers[name] = dict(
                name=name, kind=after["kind"], error_in=into, error_out=out, growth=out - into
            )
        if others:
            self._say(f"{others} layers ran differently and are not compared individually")

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # ---- as the recorder ----

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        if isinstance(error, torch.OutOfMemoryError):
            self._say("out of memory")

    def is_replaced(self) -> None:
        """Another program takes over the process."""
        self.finish(dict(kind="replaced", status=0))

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write what was measured; once."""
        if self.finished:
            return
        self.finished = True
        grown = (layer for layer in self.layers.values() if layer["growth"] > 0)
        layers = sorted(grown, key=lambda layer: -layer["growth"])
        result = dict(
            outcome=outcome,
            device=torch.cuda.get_device_name() if self.has_gpu else "CPU",
            on_gpu=self.has_gpu,
            torch=torch.__version__,
            calls=self.calls,
            diverged_at=self.diverged,
            outputs=[output.as_dict() for output in self.outputs.values()],
            layers=layers[:LAYERS],
            notes=self.notes,
            levers=self.levers.report() if self.levers else [],
        )
        file = File.PLANNED if self.planned else File.PLAIN
        self.directory.write_json(file, _finite(result))


@dataclasses.dataclass
class KeptValues:
    """What is kept of one output of one call."""

    shape: tuple[int, ...]
    sampled: bool
    floats: torch.Tensor | None = None
    """All values in fp32, or a sample of them."""
    integers: torch.Tensor | None = None
    top: torch.Tensor | None = None
    """The index of the largest entry of the last dimension, where that is meaningful."""
    loss: tuple[float, int] | None = None
    """The sum of the negative log-likelihoods of the tokens that come next, and their number."""

    @classmethod
    def of(cls, t: torch.Tensor, tokens: torch.Tensor | None) -> KeptValues:
        """`tokens` (samples, length) are the model's input tokens, if any."""
        t = t.detach()
        self = cls(tuple(t.shape), t.numel() > WHOLE)
        if not t.is_floating_point():
            self.integers = _kept(t)
            return self
        self.floats = _sample(t, WHOLE)
        scores = t.dim() == 2 and t.shape[1] >= CLASSES
        follows = tokens is not None and t.dim() == 3 and t.shape[:2] == tokens.shape
        words = t.dim() == 3 and tokens is not None and t.shape[2] >= VOCABULARY
        if scores or words:
            self.top = _kept(t.argmax(-1))
        if follows and words and t.shape[1] > 1 and int(tokens.max()) < t.shape[2]:
            self.loss = _loss(t, tokens.to(t.device))
        return self


class OutputDrift:
    """An output's differences over all calls."""

    def __init__(self, name: str) -> None:
        """`name`: its place in the model's output."""
        self.name = name
        self.calls = 0
        self.errors: list[float] = []
        self.greatest = 0.0
        self.same = self.count = 0
        self.losses = [0.0, 0.0]
        self.tokens = 0
        self.sampled = False

    def compare(self, plain: KeptValues, planned: KeptValues) -> None:
        """One call more."""
        self.calls += 1
        self.sampled = self.sampled or plain.sampled
        if plain.floats is not None and planned.floats is not None:
            self.errors.append(relative(plain.floats, planned.floats))
            if plain.floats.numel():
                difference = (plain.floats - planned.floats).abs().max().item()
                self.greatest = max(self.greatest, difference)
        for a, b in ((plain.top, planned.top), (plain.integers, planned.integers)):
            if a is not None and b is not None:
                self.same += int((a == b).sum())
                self.count += a.numel()
        if plain.loss is not None and planned.loss is not None:
            self.losses[0] += plain.loss[0]
            self.losses[1] += planned.loss[0]
            self.tokens += plain.loss[1]

    def as_dict(self) -> dict[str, Any]:
        """As `oomph.drift/1` has it."""
        perplexity = [_exp(loss / self.tokens) for loss in self.losses] if self.tokens else None
        return dict(
            name=self.name or "output",
            calls=self.calls,
            relative_error=max(self.errors) if self.errors else None,
            mean_relative_error=sum(self.errors) / len(self.errors) if self.errors else None,
            largest_difference=self.greatest if self.errors else None,
            agreement=self.same / self.count if self.count else None,
            compared=self.count,
            perplexity=perplexity,
            perplexity_change=perplexity[1] / perplexity[0] - 1 if perplexity else None,
            sampled=self.sampled,
        )


def relative(plain: torch.Tensor, planned: torch.Tensor) -> float:
    """The L2 norm of the difference over that of `plain`; infinite where only one of them is not finite."""
    if torch.equal(plain, planned):
        return 0.0
    a, b = plain.double(), planned.double()
    both = a.isfinite() & b.isfinite()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    # Masks hold infinities on purpose, at the same places.
    norm = a[both].norm().item()
    difference = (a[both] - b[both]).norm().item()
    return difference / norm if norm else math.inf


def _loss(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[float, int]:
    total, count = 0.0, 0
    for row, targets in zip(logits, tokens, strict=True):
        losses = torch.nn.functional.cross_entropy(
            row[:-1].float(), targets[1:].long(), reduction="sum"
        )
        total += losses.item()
        count += targets.numel() - 1
    return total, count


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _sample(t: torch.Tensor, most: int) -> torch.Tensor:
    flat = t.detach().reshape(-1)
    if flat.numel() > most:
        # In integers: floats of 32 bits do not hold the places of many values.
        index = torch.arange(most, device=flat.device) * (flat.numel() - 1) // (most - 1)
        flat = flat[index]
    # A copy: the script may change a model's output in place afterwards.
    return torch.empty(flat.shape, dtype=torch.float32).copy_(flat)


def _kept(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (t for _, t in _named("", value))


def _floats(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in _tensors(value) if t.is_floating_point() and t.numel())


def _integers(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in _tensors(value) if not t.is_floating_point())


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested outputs, with their places."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named(f"{name}[{index}]", item)


def _finite(value: Any) -> Any:
    """JSON has no infinity, so it is written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "infinite"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
