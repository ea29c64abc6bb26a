"""How much goes through a model at once: it comes near to what fits, and grows back."""

import os
import random

import pytest
from oomph._training import nested
from oomph._training.batch_shrinker import BatchShrinker
from oomph._training.size_limit import FLUSHES, SizeLimit
from torch import nn

from tests.support.command import ROOT

GIB = 1 << 30


class Memory:
    """A GPU whose figures the test sets."""

    measures = caches = True
    free, flushed = 8 * GIB, 0

    def usable(self):
        return self.free

    def allocated(self):
        return 0

    def retries(self):
        return self.flushed


def test_parts_differ_by_one_sample_and_the_larger_come_first():
    for size in range(1, 40):
        for parts in range(1, size + 1):
            sizes = [b - a for a, b in nested.bounds(size, parts)]
            assert sum(sizes) == size and len(sizes) == parts
            assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def settle(limit, size, fits, steps=20):
    """Steps with a batch of `size` samples of which `fits` fit at once: the parts of each, and failures."""
    of_parts = lambda n: -(-size // min(n, size))  # noqa: E731
    done, failures = [], 0
    for _ in range(steps):
        allowed = limit.allowed(8 * GIB)
        parts = next(n for n in range(1, size + 1) if of_parts(n) <= allowed)
        while of_parts(parts) > fits:
            failures += 1
            least = limit.failed(of_parts(parts), 8 * GIB)
            parts = next(n for n in range(parts + 1, size + 1) if of_parts(n) <= least)
            limit.set(of_parts(parts))
        limit.quiet(parts, of_parts, 8 * GIB, False)
        done.append(parts)
    return done, failures


def test_sizes_settle_at_the_fewest_parts_without_any_measurement():
    rng = random.Random(3)
    for _ in range(300):
        size = rng.randrange(1, 3000)
        fits = rng.randrange(max(1, size // 40), size + 10)
        done, failures = settle(SizeLimit(Memory(), 0), size, fits)
        best = next(n for n in range(1, size + 1) if -(-size // n) <= fits)
        assert done[-1] == best, (size, fits, done)
        assert failures <= 12


def test_a_measured_size_that_fails_loses_three_per_cent_not_half():
    limit = SizeLimit(Memory())
    for units in (10, 20):
        limit.memory.observe(units, units * GIB / 100)
    assert limit.room(8 * GIB) == pytest.approx(800)
    assert limit.failed(790, 8 * GIB) == pytest.approx(0.97 * 790)
    assert limit.failed(2000, 8 * GIB) == pytest.approx(1000)


def test_a_failure_counts_no_more_once_there_is_more_memory():
    limit = SizeLimit(Memory())
    limit.failed(100, 4 * GIB)
    limit.set(50)
    assert limit.allowed(4 * GIB) == limit.allowed(4.1 * GIB) == 50
    assert limit.allowed(5 * GIB) == float("inf")


def test_only_flushes_in_row_after_row_reduce_a_size():
    limit = SizeLimit(Memory(), 0)
    of_parts = lambda n: 100 // n  # noqa: E731
    for _ in range(4):
        for _ in range(FLUSHES - 1):
            limit.quiet(1, of_parts, GIB, True)
        limit.quiet(1, of_parts, GIB, False)
    assert limit.units == float("inf")
    for _ in range(FLUSHES):
        limit.quiet(1, of_parts, GIB, True)
    assert limit.units == 50
    for _ in range(30):  # not tried again at once
        limit.quiet(2, of_parts, GIB, False)
    assert limit.units == 50


def test_growth_that_fails_waits_twice_as_long():
    limit = SizeLimit(Memory(), 4)
    tries = []
    limit.failed(100, GIB)
    limit.set(50)
    for step in range(60):
        if limit.units >= 100:
            tries.append(step)
            limit.failed(100, GIB)
            limit.units = 50
        limit.quiet(2, lambda n: 100 // n, GIB, False)
    assert tries == [4, 12, 28], tries


def test_callbacks_settle_and_grow_back():
    memory, fits, seen = Memory(), 21, []
    shrinker = BatchShrinker(None, "refuse", "batch", grow_after=5)
    shrinker.bind(nn.Linear(2, 2), memory)

    def attempt():
        parts = shrinker.parts(100)
        seen.append(parts)
        if -(-100 // parts) > fits:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def steps(count):
        for _ in range(count):
            shrinker.begin()
            shrinker.until_it_fits(attempt, lambda: None, lambda: 100)

    steps(6)
    assert seen[-1] == 5 and len(seen) < 12, seen
    memory.free = 4 * GIB  # another program comes
    fits = 9
    steps(6)
    assert seen[-1] == 12, seen
    memory.free, fits = 8 * GIB, 21  # and goes
    steps(6)
    assert seen[-1] == 5, seen
    fits = 60  # of which memory says nothing
    steps(30)
    assert seen[-1] == 2, seen


def test_a_batch_that_fits_stays_whole_and_leaves_the_cache_alone(oomph):
    """A network of small parameters, whose optimizer needs segments of its own in a full GPU."""
    run = oomph(f"""
import sys; sys.path.insert(0, {os.path.join(ROOT, "bench", "library")!r})
import torch
import train_step_sizes as sizes
torch.set_num_threads(1)
whole = sizes.in_parts(sizes.SEEN["unet"], int(0.92 * 61))  # 61 is the largest batch there
assert whole["parts"][-1] == 1 and not whole["flushing"], whole
print("checked")
""", "--no-measure")  # fmt: skip
    assert "checked" in run.out, run.err
