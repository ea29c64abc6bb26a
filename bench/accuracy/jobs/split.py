"""Writes split.json: of the jobs that it does not have yet, draws some to tune on; the others are held out.

python split.py SEED TUNE    (TUNE: how many; a share of each subject's jobs, as near as whole jobs go)

On 2026-11-22 half of 120 jobs were drawn (20261122, another loop), on 2026-11-26 35 of 95 (20261126).
"""

import json
import pathlib
import random
import re
import sys

HERE = pathlib.Path(__file__).parent


def main():
    seed, tune = map(int, sys.argv[1:])
    split = json.loads((HERE / "split.json").read_text())
    known = {*split["tune"], *split["held_out"]}
    new = [
        f"{file.stem}/{name}"
        for file in sorted(HERE.glob("*.py"))
        for name in re.findall(r"^@job\([^@]*?\)\ndef (\w+)", file.read_text(), re.M)
        if f"{file.stem}/{name}" not in known
    ]
    draw, order = random.Random(seed), {}
    for subject in dict.fromkeys(job.split("/")[0] for job in new):
        jobs = [job for job in new if job.startswith(subject + "/")]
        draw.shuffle(jobs)
        order.update({job: (place + draw.random()) / len(jobs) for place, job in enumerate(jobs)})
    jobs = sorted(order, key=order.get)
    split["tune"] += sorted(jobs[:tune])
    split["held_out"] += sorted(jobs[tune:])
    (HERE / "split.json").write_text(json.dumps(split, indent=1) + "\n")


if __name__ == "__main__":
    main()
