"""Random numbers as the GPU draws them: PyTorch's generator for CUDA, laid over tensors as its kernels do.

`oomph_vgpu_random` (`crates/oomph-vgpu/src/philox.rs`) gives the generator's numbers. What is here says which of them
belongs to which element, and what PyTorch makes of it (`DistributionTemplates.h`, `Dropout.cu`, `Randperm.cu`).
Uniform numbers, integers, masks and permutations are the GPU's bits. Logarithms, sines and tangents are a CPU's, so normal
numbers and what follows from them differ in the last bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from oomph._virtual_gpu.library import library

# What is drawn, as the virtual GPU numbers it, and of which type.
_UNIFORM, _NORMAL, _UNIFORM_DOUBLE, _NORMAL_DOUBLE, _BITS, _LONG_BITS = range(6)
_TYPES = (torch.float32, torch.float32, torch.float64, torch.float64, torch.int64, torch.int64)
_BLOCK = 256
# A remainder of 32 bits by more than this would prefer some numbers.
_LONG_RANGE = 1 << 28
# The most bytes that a thread of dropout's kernel loads at once.
_LOAD = 16


@functools.cache
def _largest_grid(device: int) -> int:
    """In threads, of a kernel that draws."""
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count * (found.max_threads_per_multi_processor // _BLOCK) * _BLOCK


class Drawn:
    """The numbers that an operator drew, which has run and moved its generator on: the newest first."""

    def __init__(self, generator: torch.Generator, offset: int) -> None:
        """Of a generator of CUDA's, which stands at `offset` now."""
        self._seed = generator.initial_seed() & (2**64 - 1)
        self.offset = offset
        self._largest = _largest_grid(generator.device.index or 0)

    @property
    def seed(self) -> int:
        """The generator's."""
        return self._seed

    def before(self, numbers: int) -> int:
        """The generator's offset before a kernel that moved it by so many numbers a thread."""
        self.offset -= -(-numbers // 4) * 4
        return self.offset

    def numbers(
        self, kind: int, count: int, offset: int, threads: int, limit: int = 0, vector: int = 0
    ) -> torch.Tensor:
        """`count` numbers of a grid of `threads`, of which each takes `vector` neighbours (0: one, and the next a grid away).

        Integers are below `limit` (0: all bits). Of shape (count,), in the order of the kernel's elements.
        """
        out = torch.empty(count, dtype=_TYPES[kind])
        library().oomph_vgpu_random(
            kind, self._seed, offset, threads, vector, limit, out.data_ptr(), count
        )
        return out

    def grid(self, kind: int, count: int, limit: int = 0, vector: int = 0) -> torch.Tensor:
        """The same, of a grid as PyTorch sizes it."""
        threads = min(self._largest, -(-count // _BLOCK) * _BLOCK)
        each = 4 if kind in (_UNIFORM, _NORMAL, _BITS) else 2
        calls = -(-count // (threads * each))
        return self.numbers(kind, count, self.before(4 * calls), threads, limit, vector)

    def uniform(self, t: torch.Tensor) -> torch.Tensor:
        """In (0, 1], one for each element of `t`."""
        kind = _UNIFORM_DOUBLE if t.dtype == torch.float64 else _UNIFORM
        return self.grid(kind, t.numel())

    def normal(self, t: torch.Tensor) -> torch.Tensor:
        """One for each element of `t`."""
        kind = _NORMAL_DOUBLE if t.dtype == torch.float64 else _NORMAL
        return self.grid(kind, t.numel())


class Numbers:
    """The numbers that a generator of CUDA's will draw for code that has not run yet."""

    def __init__(self, generator: torch.Generator) -> None:
        """From where the generator stands."""
        self._generator = generator
        self._before = self._offset = generator.get_offset()

    def draw(self, write: Callable[[Drawn], None]) -> None:
        """Have `write` take its numbers, which a first call counts."""
        trial = Drawn(self._generator, 1 << 40)
        write(trial)
        self._offset += (1 << 40) - trial.offset
        write(Drawn(self._generator, self._offset))

    def seeds(self, count: int) -> torch.Tensor:
        """As Inductor's kernels get them."""
        limits = torch.iinfo(torch.int64)
        found = torch.empty(count, dtype=torch.int64)
        self.draw(lambda drawn: _random_(drawn, [found], found, limits.min, limits.max))
        return found

    def are_drawn(self) -> bool:
        """Whether the code has drawn as many, now that it has run."""
        return self._offset in (self._before, self._generator.get_offset())


def efficient_mask(seed: int, offset: int, shape: Any, p: float) -> torch.Tensor:
    """What memory-efficient attention multiplies probabilities with, for a dropout of `p`: float32 of (samples, heads, queries, keys).

    `seed` and `offset` are the generator's before it. One sequence of numbers lies over all of them (`kernel_forward.h`).
    """
    uniform = torch.empty(shape, dtype=torch.float32)
    library().oomph_vgpu_random(
        _UNIFORM, seed, offset, 1, 0, 0, uniform.data_ptr(), uniform.numel()
    )
    return (uniform > p).float().div_(1 - p)


def flash_mask(seed: int, offset: int, shape: Any, p: float) -> torch.Tensor:
    """The same for FlashAttention, which compares bytes: what it drops is a multiple of 1/256 (`flash_fwd_launch_template.h`)."""
    kept = torch.empty(shape, dtype=torch.uint8)
    samples, heads, queries, keys = shape
    threshold = math.floor((1 - p) * 255.0)
    library().oomph_vgpu_flash_mask(
        seed, offset, samples * heads, queries, keys, threshold, kept.data_ptr()
    )
    return kept.float().div_(1 - p)


def of_triton(kind: str, size: Any, seed: int, low: int = 0, high: int = 0) -> torch.Tensor:
    """Triton's `rand`, `randn` or (between `low` and `high`) Inductor's `randint64`, each element by its position."""
    count = math.prod(size)
    numbers = torch.empty(4 * count, dtype=torch.int64)
    library().oomph_vgpu_random(
        _BITS, seed & (2**64 - 1), 0, 1, 0, 0, numbers.data_ptr(), numbers.numel()
    )
    first, second = numbers.view(count, 4).T[:2]
    if kind == "randint":
        wide = first.numpy().astype("uint64") | (second.numpy().astype("uint64") << 32)
        found = torch.from_numpy((wide % (high - low)).astype("int64")).add_(low)
    elif kind == "rand":
        found = _of_bits(first)
    else:
        distance = _of_bits(first).clamp_(min=1e-7).log_().mul_(-2).sqrt_()
        found = _of_bits(second).mul_(2 * math.pi).cos_().mul_(distance)
    return found.view(tuple(size))


def _of_bits(bits: torch.Tensor) -> torch.Tensor:
    """32 bits each, as Triton makes numbers in [0, 1) of them."""
    signed = bits.to(torch.int32)
    return torch.where(signed < 0, -signed - 1, signed).float().mul_(4.6566127342e-10)


def _fill(t: torch.Tensor, values: torch.Tensor) -> None:
    """Kernels take elements in the order in which they lie in memory."""
    strides = t.stride()
    ordered = t.permute(sorted(range(t.dim()), key=lambda axis: (-strides[axis], axis)))
    ordered.copy_(values.view(ordered.shape))


# ---- operators: what was drawn, the results, the operator's arguments ----


def _uniform_(drawn, outs, t, low=0.0, high=1.0):
    uniform = drawn.uniform(t)
    # One instruction of the GPU multiplies and adds, and rounds once.
    values = (uniform.double() * (high - low) + low).to(uniform.dtype).to(t.dtype)
    _fill(t, values.masked_fill_(values == high, low))


def _normal_(drawn, outs, t, mean=0.0, std=1.0):
    if t.is_complex():
        t, std = torch.view_as_real(t), std / math.sqrt(2)
    _fill(t, drawn.normal(t).mul_(std).add_(mean).to(t.dtype))


def _log_normal_(drawn, outs, t, mean=1.0, std=2.0):
    _fill(t, drawn.normal(t).mul_(std).add_(mean).exp_().to(t.dtype))


def _waits(uniform, rate):
    half = torch.finfo(uniform.dtype).eps / 2
    logarithms = torch.where(uniform >= 1 - half, uniform.new_tensor(-half), uniform.log())
    return logarithms.mul_(-1 / rate)


def _exponential_(drawn, outs, t, rate=1.0):
    _fill(t, _waits(drawn.uniform(t), rate).to(t.dtype))


def _cauchy_(drawn, outs, t, median=0.0, sigma=1.0):
    uniform = drawn.uniform(t)
    eps = torch.finfo(uniform.dtype).eps
    tangents = uniform.clamp_(eps, 1 - eps).sub_(0.5).mul_(math.pi).tan_()
    _fill(t, tangents.mul_(sigma).add_(median).to(t.dtype))


def _geometric_(drawn, outs, t, p):
    _fill(t, drawn.uniform(t).log_().div_(math.log1p(-p)).ceil_().to(t.dtype))


def _bernoulli_(drawn, outs, t, p=0.5):
    if isinstance(p, torch.Tensor):
        return _bernoulli(drawn, [t], p)
    # Compared in the tensor's precision, of at least 32 bits.
    uniform = drawn.uniform(t)
    _fill(t, (uniform < uniform.new_tensor(p)).to(t.dtype))


def _bernoulli(drawn, outs, probabilities, p=None):
    """Each four elements have a thread of their own."""
    (t,) = outs
    if p is not None:
        return _bernoulli_(drawn, outs, t, p)
    count = t.numel()
    uniform = drawn.numbers(_UNIFORM, count, drawn.before(10), count, vector=4).view(t.shape)
    t.copy_((uniform <= probabilities).to(t.dtype))


def _limit(t: torch.Tensor) -> int:
    """How many integers `random_` chooses from: those that the type has exactly, from 0 on."""
    if t.dtype == torch.bool:
        return 2
    if t.is_floating_point():
        return round(2 / torch.finfo(t.dtype).eps) + 1
    return torch.iinfo(t.dtype).max + 1


def _random_(drawn, outs, t, *bounds):
    """Of no bounds, the end, or the beginning and the end, which may be None."""
    if not bounds:
        low, limit = 0, _limit(t)
        wide = t.dtype in (torch.int64, torch.float64)
    else:
        low, end = (0, *bounds)[-2:]
        limit = (_limit(t) if end is None else end) - low
        wide = limit >= _LONG_RANGE
        limit %= 1 << 64
    _fill(t, drawn.grid(_LONG_BITS if wide else _BITS, t.numel(), limit).add_(low).to(t.dtype))


def _rand(drawn, outs, *_):
    _uniform_(drawn, outs, outs[0])


def _randn(drawn, outs, *_):
    _normal_(drawn, outs, outs[0])


def _randint(drawn, outs, *args):
    """Bounds, and a tensor before them or a size behind them."""
    bounds = [bound for bound in args if isinstance(bound, int)]
    _random_(drawn, outs, outs[0], *bounds)


def _normal(drawn, outs, mean, std=1.0, size=None):
    _normal_(drawn, outs, outs[0])
    outs[0].mul_(std).add_(mean)


def _neighbours(t: torch.Tensor, out: torch.Tensor) -> int:
    """How many elements a thread of dropout's kernel takes at once; 0 if it takes single ones."""
    dense = torch.ops.aten.is_non_overlapping_and_dense.default
    if not (dense(t) and dense(out)):
        return 0
    size = t.element_size()
    count = _LOAD // size
    while count > 1 and (t.data_ptr() % (count * size) or t.numel() % count):
        count //= 2
    return count if count > 1 else 0


def _native_dropout(drawn, outs, t, p, train=True):
    out, mask = outs
    keep = 1.0 - p
    vector = _neighbours(t, out)
    uniform = drawn.grid(_UNIFORM, t.numel(), vector=vector)
    wide = torch.float64 if t.dtype == torch.float64 else torch.float32
    kept = uniform.to(wide) < torch.tensor(keep, dtype=wide)
    if vector:
        _fill(mask, kept)
    else:
        mask.copy_(kept.view(mask.shape))
    out.copy_(t.to(wide) * mask * (1 / torch.tensor(keep, dtype=wide)))


def _randperm(drawn, outs, count):
    """Positions in the order of random keys. Where keys are the same, a thread shuffles."""
    (out,) = outs
    if count == 0:
        return
    bits = math.ceil(math.log2(count - (6 * count**2 + 1) / (12 * math.log(0.9))))
    size = 32 if bits <= 32 else 64
    shuffle = drawn.before(count)
    # All integers of the type but the largest, whose lowest bits are the keys.
    keys = drawn.grid(_LONG_BITS, count, 2**size - 1) - 2 ** (size - 1)
    if bits < 64:
        keys &= (1 << bits) - 1
    keys, order = keys.sort(stable=True)
    for first, last in _islands(keys):
        numbers = drawn.numbers(_BITS, (first + 1) * (last - first), shuffle, first + 1)
        for at, number in zip(range(last - first, 0, -1), numbers[first :: first + 1].tolist()):
            a, b = first + at, first + number % (at + 1)
            order[[a, b]] = order[[b, a]]
    out.copy_(order)


def _islands(keys: torch.Tensor) -> list[tuple[int, int]]:
    """The first and the last place of each run of the same keys."""
    same = torch.zeros(len(keys) + 1, dtype=torch.int8)
    same[1:-1] = keys[1:] == keys[:-1]
    edges = same.diff()
    return list(
        zip((edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist())
    )


def _multinomial(drawn, outs, probabilities, count, replacement=False):
    if replacement and count > 1:
        raise ValueError("a kernel of its own samples with replacement")
    waits = torch.empty_like(probabilities)
    _exponential_(drawn, [waits], waits)
    rates = probabilities / waits
    (out,) = outs
    if count == 1:
        out.copy_(rates.argmax(-1, keepdim=True))
    else:
        out.copy_(rates.topk(count).indices)


def _rrelu_with_noise(drawn, outs, x, noise, lower=0.125, upper=1 / 3, training=False, *_):
    if not training:
        raise ValueError("nothing is drawn")
    if x.dtype == torch.float64:
        raise ValueError("it leaves half of each four numbers")
    slopes = (drawn.uniform(x).double() * (upper - lower) + lower).to(x.dtype).view(x.shape)
    noise.copy_(torch.where(x <= 0, slopes, torch.ones_like(slopes)))
    outs[0].copy_(x * noise)


SPENT = {
    "aten::poisson": 20, "aten::binomial": 44, "aten::_standard_gamma": 12, "aten::_sample_dirichlet": 12,
}  # fmt: skip
"""Operators whose numbers are not the GPU's, and by how much each moves the generator on."""

DRAWN: dict[str, Callable[..., Any]] = {
    "aten::rand": _rand,
    "aten::rand_like": _rand,
    "aten::randn": _randn,
    "aten::randn_like": _randn,
    "aten::randint": _randint,
    "aten::randint_like": _randint,
    "aten::normal": _normal,
    "aten::uniform_": _uniform_,
    "aten::normal_": _normal_,
    "aten::log_normal_": _log_normal_,
    "aten::exponential_": _exponential_,
    "aten::cauchy_": _cauchy_,
    "aten::geometric_": _geometric_,
    "aten::bernoulli_": _bernoulli_,
    "aten::bernoulli": _bernoulli,
    "aten::random_": _random_,
    "aten::native_dropout": _native_dropout,
    "aten::randperm": _randperm,
    "aten::multinomial": _multinomial,
    "aten::rrelu_with_noise": _rrelu_with_noise,
    "aten::rrelu_with_noise_": _rrelu_with_noise,
}
"""By the operator's name: write what it drew. Arguments are the numbers, the results on the CPU, then the operator's own, without its generator."""
