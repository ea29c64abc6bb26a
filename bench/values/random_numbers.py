"""Random numbers with `--compute` beside a real GPU's.

    oomph run --gpu h100 --compute 4GiB bench/values/random_numbers.py [RESULTS]

Compares with `bench/gpu/results/h100_random_numbers.json`, which `bench/gpu/random_numbers.py` measured.
"""

import json
import sys
from collections import Counter
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
import random_numbers  # noqa: E402

TRUTH = GPU / "results" / "h100_random_numbers.json"


def compared(found, truth):
    """`same bits`, `rounding` or `other` for each case, by its first numbers where the hash differs."""
    result = {}
    for name, measured in truth.items():
        mine = found.get(name)
        if mine is None or "error" in measured:
            continue
        if mine.get("sha256") == measured["sha256"]:
            result[name] = "same bits"
        elif (
            "first" in mine
            and mine["offset"] == measured["offset"]
            and all(
                abs(a - b) <= 1e-5 * abs(b) + 1e-6 for a, b in zip(mine["first"], measured["first"])
            )
        ):
            result[name] = "rounding"
        else:
            result[name] = "other"
    return result


if __name__ == "__main__":
    result = compared(random_numbers.measured(), json.loads(TRUTH.read_text())["cases"])
    print(Counter(result.values()))
    print("other:", ", ".join(name for name, how in result.items() if how == "other"))
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1))
