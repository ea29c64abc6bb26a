"""How far hosts repeat themselves: `python bench/time/repeats.py`. Jobs that wait for the host and were measured on two machines.

What issuing a step took on one, beside the other, after one factor for each two machines (the median): no estimate can be nearer to
both. Half of such a difference's variance is one measurement's.
"""

import statistics
from itertools import combinations

from compare import DEFAULT, lines, summary

RESULTS = DEFAULT.parent
MACHINES = "h200 h100_again h100_fresh h100_fresh2 h200_fresh3 h200_fresh4 h200_again4".split()
LEAST = 5


def main():
    """Print the differences."""
    issued = {}
    for machine in MACHINES:
        profiles = lines(str(RESULTS / f"{machine}_profiles.jsonl.gz"))
        busy = {row["case"]: row["busy_us"] / 1e6 for row in profiles}
        issued[machine] = {
            row["case"]: issue
            for row in lines(str(RESULTS / f"{machine}_jobs.jsonl"))
            if "issue_s" in row
            and (issue := statistics.median(row["issue_s"])) * 0.8 > busy.get(row["case"], issue)
        }
    together = []
    for one, other in combinations(MACHINES, 2):
        both = issued[one].keys() & issued[other].keys()
        if len(both) < LEAST:
            continue
        ratios = [issued[other][case] / issued[one][case] for case in both]
        factor = statistics.median(ratios)
        off = [ratio / factor - 1 for ratio in ratios]
        print(f"{one} and {other}, factor {factor:.2f}")
        summary("hosts", off)
        together += off
    summary("all", together)


if __name__ == "__main__":
    main()
