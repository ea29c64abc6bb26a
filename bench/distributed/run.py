"""Jobs on two virtual GPUs against what two H200s measured: `run.py [--out results/virtual.json] [PATTERN]`.

For each rank of each job: peaks of allocated and reserved memory, and what the GPU holds in all
(reserved and what is outside of the allocator, with NCCL's memory in it).
"""

import argparse, json, os, re, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")
JOBS = [
    (["results/h200_x2_huggingface.jsonl"], "huggingface.py"),
    (["results/h200_x2_own.jsonl", "../gpu/results/h200_x2_distributed.jsonl"], "own.py"),
]
KEYS = ("max_allocated", "max_reserved", "used")


def lines(text):
    """JSON objects, which ranks may have printed on one line."""
    found, decoder = [], json.JSONDecoder()
    for start in re.finditer(r'\{"mode"', text):
        found.append(decoder.raw_decode(text, start.start())[0])
    return found


def by_rank(rows):
    # What the GPU holds in the end; the caches' peak is a figure of its own.
    return {r["rank"]: dict(r, used=r["max_reserved"] + r["outside"]) for r in rows}


def virtual(script, mode, name):
    with tempfile.TemporaryDirectory() as directory:
        began = time.time()
        run = subprocess.run(
            [
                OOMPH,
                "run",
                "--quiet",
                "--gpu",
                "h200:2",
                "--out",
                directory,
                "--",
                "torchrun",
                "--standalone",
                "--nproc-per-node",
                "2",
                os.path.join(HERE, "jobs", script),
                mode,
                name,
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
        rows = lines(run.stdout)
        if len(rows) != 2:
            sys.exit(f"{script} {mode} {name} printed {len(rows)} lines:\n{run.stderr[-2000:]}")
        return by_rank(rows), time.time() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    results, errors = [], {key: [] for key in KEYS}
    for truths, script in JOBS:
        measured = {}
        for row in lines("".join(open(os.path.join(HERE, truth)).read() for truth in truths)):
            if row["mode"] != "nccl":
                measured.setdefault((row["mode"], row["name"]), []).append(row)
        for (mode, name), rows in measured.items():
            if options.pattern not in f"{script} {mode} {name}":
                continue
            real, (ours, seconds) = by_rank(rows), virtual(script, mode, name)
            job = dict(
                job=f"{script.removesuffix('.py')} {mode} {name}",
                seconds=round(seconds, 1),
                ranks=[],
            )
            for rank in sorted(real):
                row = {"rank": rank}
                for key in KEYS:
                    # Ranks of one real job differ, from run to run, too: the nearest of them is what can be asked for.
                    values = [by_rank([r])[r["rank"]][key] for r in rows]
                    low, high, got = min(values), max(values), ours[rank][key]
                    nearest = min(max(got, low), high)
                    row[key] = dict(
                        real=real[rank][key],
                        virtual=got,
                        percent=round(100 * (got / real[rank][key] - 1), 3),
                        beyond_ranks_percent=round(100 * (got / nearest - 1), 3),
                    )
                    errors[key].append(
                        (abs(row[key]["percent"]), abs(row[key]["beyond_ranks_percent"]))
                    )
                job["ranks"].append(row)
            results.append(job)
            print(
                f"{job['job']:28} {job['seconds']:5.1f} s ",
                "  ".join(
                    f"{key} {row[key]['percent']:+.2f} %" for row in job["ranks"] for key in KEYS
                ),
                flush=True,
            )
    summary = {
        key: dict(
            median_percent=round(statistics.median(e for e, _ in all_), 3),
            max_percent=max(e for e, _ in all_),
            max_beyond_ranks_percent=max(e for _, e in all_),
        )
        for key, all_ in errors.items()
        if all_
    }
    print(json.dumps(summary, indent=1))
    if options.out:
        import torch

        with open(options.out, "w") as file:
            json.dump(
                dict(
                    torch=torch.__version__,
                    date=time.strftime("%Y-%m-%d"),
                    command="python bench/distributed/run.py --out " + options.out,
                    summary=summary,
                    jobs=results,
                ),
                file,
                indent=1,
            )
            file.write("\n")


if __name__ == "__main__":
    main()
