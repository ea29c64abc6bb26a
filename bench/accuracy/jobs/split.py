"""Wrote split.json, once: half of each subject's jobs, drawn at random, to tune on; the others are held out.

python split.py > split.json
"""

import json
import pathlib
import random
import re

SEED = 20261122


def main():
    draw, halves = random.Random(SEED), dict(seed=SEED, tune=[], held_out=[])
    for file in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        names = re.findall(r"^@job\(.*\)\ndef (\w+)", file.read_text(), re.M)
        draw.shuffle(names)
        # Of an odd number, the spare one goes to the shorter half.
        middle = (len(names) + (len(halves["tune"]) <= len(halves["held_out"]))) // 2
        halves["tune"] += [f"{file.stem}/{name}" for name in names[:middle]]
        halves["held_out"] += [f"{file.stem}/{name}" for name in names[middle:]]
    print(json.dumps(halves, indent=1))


if __name__ == "__main__":
    main()
