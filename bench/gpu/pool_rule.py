"""Does the driver place blocks of a memory pool by the rule of `crates/oomph-vgpu/src/pools.rs`?

    python pool_rule.py results/pool_trace_*.bin.xz

Replays traces of `pool_trace.c`. Each request must get the address that the rule says, when as few as possible of the oldest
freed blocks are taken to be finished: how far the GPU is at that moment, the trace does not tell.
"""

import lzma
import struct
import sys

ALLOCATED, FREED, TRIMMED, WAITED_FOR_DEVICE = 1, 2, 3, 4


class Pool:
    """Holes as [freed at, start, length, unchanged since]: pending ones, oldest first, and those that are free for everybody."""

    def __init__(self):
        self.pending, self.free, self.changes = [], [[0, 0, 1 << 40, 0]], 0

    def copy(self):
        other = Pool()
        other.pending = [list(hole) for hole in self.pending]
        other.free = [list(hole) for hole in self.free]
        other.changes = self.changes
        return other

    def join(self, holes, freed, start, length):
        end = start + length
        for hole in list(holes):
            if hole[1] + hole[2] == start:
                start = hole[1]
                holes.remove(hole)
            elif hole[1] == end:
                end += hole[2]
                holes.remove(hole)
        self.changes += 1
        holes.append([freed, start, end - start, self.changes])

    def finish_oldest(self):
        self.join(self.free, *self.pending.pop(0)[:3])

    def find(self, size):
        for holes in (self.pending, self.free):
            fitting = [hole for hole in holes if hole[2] >= size]
            if fitting:
                return holes, min(fitting, key=lambda hole: (hole[2], hole[3]))

    def take(self, holes, hole, size):
        if hole[2] == size:
            holes.remove(hole)
        else:
            self.changes += 1
            hole[1], hole[2], hole[3] = hole[1] + size, hole[2] - size, self.changes


def replay(path):
    """How many requests there are, and how many are as the rule says until the first that is not."""
    records = list(struct.iter_unpack("<5Q", lzma.open(path).read()))
    first = next(at for what, _, at, _, _ in records if what == ALLOCATED)
    requests, pool, taken, good = sum(r[0] == ALLOCATED for r in records), Pool(), {}, 0
    for number, (what, size, at, _, _) in enumerate(records):
        if what == ALLOCATED:
            size = max(1, -(-size // 512)) * 512
            tried = pool.copy()
            holes, hole = tried.find(size)
            while hole[1] != at - first:
                if not tried.pending:
                    return requests, good
                tried.finish_oldest()
                holes, hole = tried.find(size)
            tried.take(holes, hole, size)
            pool, taken[at], good = tried, size, good + 1
        elif what == FREED:
            pool.join(pool.pending, number, at - first, taken.pop(at))
        elif what in (TRIMMED, WAITED_FOR_DEVICE):
            while pool.pending:
                pool.finish_oldest()
    return requests, good


for path in sys.argv[1:]:
    requests, good = replay(path)
    print(
        f"{path}: {good} of {requests} requests as the rule says"
        + ("" if good == requests else ", then not")
    )
