"""Which of two GPUs is quicker: `python bench/time/order.py NEUSIGHT`.

Every kernel of NeuSight's tables that two GPUs ran, where their times differ by at least 15 %: how often the clocks name the quicker one.
Arguments and data as in `published.py`.
"""

import collections
import itertools
import sys

import published


def main():
    """Count the pairs."""
    rows = list(published.neusight(sys.argv[1]))
    kernels = collections.defaultdict(lambda: collections.defaultdict(list))
    for gpu in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == gpu]
        for row, seconds in zip(own, published.priced(gpu, [row[3] for row in own]), strict=True):
            line = row[3]
            # Names of elementwise kernels differ among GPUs; their bytes and order do not.
            key = (row[1], *(line[1:5] if line[0] == "product" else (row[5],)))
            kernels[key][gpu].append((row[2], seconds))
    right, every = collections.Counter(), collections.Counter()
    for key, gpus in kernels.items():
        for a, b in itertools.combinations(sorted(gpus), 2):
            if key[0] == "elem" and len(gpus[a]) != len(gpus[b]):
                continue
            count = None if key[0] == "elem" else 1
            for (real, told), (real_b, told_b) in zip(gpus[a][:count], gpus[b][:count]):
                if max(real, real_b) >= 1.15 * min(real, real_b):
                    every[a, b] += 1
                    right[a, b] += (real < real_b) == (told < told_b)
    tested = published.TESTED
    for title, of in (
        ("all pairs", lambda pair: True),
        ("at least one of the test GPUs", lambda pair: any(gpu in tested for gpu in pair)),
        ("both of the test GPUs", lambda pair: all(gpu in tested for gpu in pair)),
    ):
        n = sum(count for pair, count in every.items() if of(pair))
        good = sum(count for pair, count in right.items() if of(pair))
        print(f"{title:30} {good} of {n} = {good / max(n, 1):.1%}")
    for pair, n in sorted(every.items(), key=lambda item: right[item[0]] / item[1]):
        print(f"{' '.join(pair):34} {right[pair]} of {n} = {right[pair] / n:.1%}")


if __name__ == "__main__":
    main()
