"""Compares `oomph run` on a virtual H200 with what the H200 itself measured: `make bench-accuracy`.

    python bench/accuracy/run.py [--only NAME…] [--sets SET…] [--roles ROLE…] [--verdicts] [--truth FILE] [--again FILE]
                                  [--parallel N] [--out FILE]

For each job: peak allocated, reserved and used of the virtual run, and their relative errors; beside
them the peak that PyTorch's MemTracker predicts. `--verdicts` runs each job twice more, with a
capacity 5 % above the real need and one below 95 % of the real allocated peak. What the H200 measured
is `results/h200.jsonl`: `set` is the file of the job, `role` what it was measured for (see README.md),
`env` what it needs in its environment, `error` how it failed there: it must fail here too.

Some jobs need other amounts in each run on the H200 itself. `--again` names a file with second measurements of some: then a
peak agrees that is close to one of the two or lies between them; the errors are those against the first.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
HOUSE = os.path.dirname(os.path.dirname(HERE))
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")
RESULTS = os.path.join(HERE, "results")
ROLES = ("development", "validation", "test", "graphs", "tune", "held_out")
CLOSE = 1e-3
"""Relative errors up to this count as agreement."""


def lines(name):
    with open(os.path.join(RESULTS, name)) as file:
        return [json.loads(line) for line in file if line.strip()]


def run(truth, extra=()):
    """One `oomph run` of a job: its JSON, exit status, seconds, and what it printed if it has no JSON."""
    jobs, case = truth["set"], truth["case"]
    env = dict(os.environ, **truth.get("env", {}))
    if case.endswith("+expandable"):
        env["PYTORCH_CUDA_ALLOC_CONF"], case = "expandable_segments:True", case.split("+")[0]
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "run.json")
        # Empty, as where the job was measured: what another job compiled would not be tried out again.
        env.update(TORCHINDUCTOR_CACHE_DIR=place + "/inductor", TRITON_CACHE_DIR=place + "/triton")
        command = [
            OOMPH,
            "run",
            "--gpu",
            "h200",
            "--quiet",
            "--no-measure",
            "--json",
            out,
            "--out",
            place + "/run",
            *extra,
            f"jobs/{jobs}.py",
            case,
        ]
        began = time.perf_counter()
        process = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if not os.path.exists(out):
            return None, process.returncode, seconds, process.stderr[-1500:]
        with open(out) as file:
            # A job of jobs/job.py ends in order and prints its error.
            printed = [line for line in process.stdout.splitlines() if line.startswith("{")]
            failure = json.loads(printed[-1]).get("error", "") if printed else ""
            return json.load(file), process.returncode, seconds, failure


def is_close(bytes_here, *measured):
    """Whether a peak is close to what was measured, once or twice."""
    return min(measured) * (1 - CLOSE) <= bytes_here <= max(measured) * (1 + CLOSE)


def agrees(row):
    """Whether the run ended as the measured one did, with both peaks close to it."""
    return row.get("agrees", False)


def errors(rows, key):
    return [abs(row[key]) for row in rows if row.get(key) is not None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--sets", nargs="*", help="files in jobs/, without their ending")
    parser.add_argument("--roles", nargs="*", help="what jobs were measured for")
    parser.add_argument("--truth", default="h200.jsonl", help="a file in results/")
    parser.add_argument("--again", help="a file in results/ with second measurements")
    parser.add_argument("--parallel", type=int, default=1, help="how many jobs at once")
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    serial = {row["case"]: row for row in lines("h200_serial.jsonl")}
    peer = {row["case"]: row for row in lines("memtracker.jsonl")}
    again = {row["case"]: row for row in lines(args.again)} if args.again else {}

    def compare(truth):
        case, jobs, role = truth["case"], truth["set"], truth["role"]
        found, status, seconds, failure = run(truth)
        row = dict(case=case, set=jobs, role=role, seconds=round(seconds, 1), status=status)
        if found is None:
            row["failure"] = failure
        else:
            peak = found["peak"]
            measured = [truth, again[case]] if case in again else [truth]
            row.update(
                allocated=peak["allocated_bytes"] / truth["max_allocated"] - 1,
                reserved=peak["reserved_bytes"] / truth["max_reserved"] - 1,
                peak=peak,
                ended_alike=status == (1 if "error" in truth else 0),
            )
            row["agrees"] = row["ended_alike"] and all(
                is_close(peak[f"{kind}_bytes"], *(one[f"max_{kind}"] for one in measured))
                for kind in ("allocated", "reserved")
            )
            if not agrees(row):
                row["assumptions"] = found["assumptions"]
                # No path of this machine.
                row["failure"] = (failure or found["failure"] or "").replace(f"{HOUSE}/", "")
            if case in serial:
                row["used"] = (
                    peak["used_bytes"]
                    / (serial[case]["max_reserved"] + serial[case]["used_outside"])
                    - 1
                )
        if "peak" in peer.get(case, {}):
            row["memtracker_allocated"] = peer[case]["peak"] / truth["max_allocated"] - 1
            row["memtracker_reserved"] = peer[case]["peak"] / truth["max_reserved"] - 1
        if args.verdicts and role == "development":
            outside = serial.get(case, {}).get("used_outside", 804061184)
            roomy, tight = (
                int((truth["max_reserved"] + outside) * 1.05),
                int(truth["max_allocated"] * 0.949),
            )
            row["fits_when_roomy"] = run(truth, ["--memory", f"{roomy}"])[1] == 0
            row["fails_when_tight"] = run(truth, ["--memory", f"{tight}"])[1] == 3
        return row

    chosen = [
        truth
        for truth in lines(args.truth)
        if all(
            not wanted or truth[key] in wanted
            for wanted, key in ((args.only, "case"), (args.sets, "set"), (args.roles, "role"))
        )
    ]
    rows = []
    # Each job is a process of its own; the threads only wait for them.
    pool = ThreadPoolExecutor(args.parallel)
    for row in pool.map(compare, chosen):
        rows.append(row)
        show = lambda key: f"{row[key]:+9.4%}" if row.get(key) is not None else "        –"
        print(
            f"{row['case']:28} allocated {show('allocated')}  reserved {show('reserved')}  used {show('used')}  memtracker {show('memtracker_reserved')}  {row['seconds']:5.1f} s{'' if agrees(row) else '  ◄'} {row.get('failure', '')[-200:]}"
            + (
                f"  roomy {row['fits_when_roomy']} tight {row['fails_when_tight']}"
                if "fits_when_roomy" in row
                else ""
            ),
            flush=True,
        )
    print()
    for role in ROLES:
        chosen = [row for row in rows if row["role"] == role]
        if chosen:
            close = sum(map(agrees, chosen))
            print(
                f"{role:12} {close} of {len(chosen)} jobs within {CLOSE:.1%} in allocated and reserved"
            )
        for key in ("allocated", "reserved", "used", "memtracker_allocated", "memtracker_reserved"):
            values = errors(chosen, key)
            if values:
                print(
                    f"{role:12} {key:21} median {statistics.median(values):.4%}  max {max(values):.4%}  ({len(values)} of {len(chosen)} jobs)"
                )
    if args.out:
        result = dict(
            date=time.strftime("%Y-%m-%d"),
            machine=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            command=" ".join(["python bench/accuracy/run.py", *sys.argv[1:]]),
            children_max_rss_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            rows=rows,
        )
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
