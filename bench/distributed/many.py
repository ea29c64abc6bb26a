"""How long 2, 8 and 64 ranks take on this machine, and how much memory: `many.py [--out results/many.json]`.

Each number of ranks with ranks forked from one process (as `oomph run` does) and started each by
itself (`--no-fork`), of a small GPT under DDP and FSDP2. `together_bytes` is what all processes of the
run held at most, shared pages counted once (sum of Pss and page tables, looked at every second);
`private_bytes` what a rank shared with nobody at its end (the median of all).
"""

import argparse, json, os, re, statistics, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")


def meminfo(name):
    return next(
        int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith(name)
    )


def held(process):
    """Bytes of a process and all below it."""
    total = 0
    try:
        for name, key in (("smaps_rollup", "Pss:"), ("status", "VmPTE:")):
            total += next(
                (
                    int(line.split()[1]) << 10
                    for line in open(f"/proc/{process}/{name}")
                    if line.startswith(key)
                ),
                0,
            )
        for task in os.listdir(f"/proc/{process}/task"):
            total += sum(
                held(int(child))
                for child in open(f"/proc/{process}/task/{task}/children").read().split()
            )
    except OSError:
        pass  # it has ended
    return total


def run(ranks, mode, fork):
    most, over = [0], threading.Event()

    def watch():
        while not over.wait(1):
            most[0] = max(most[0], held(os.getpid()) - held_by_us())

    def held_by_us():
        return next(
            int(line.split()[1]) << 10
            for line in open("/proc/self/smaps_rollup")
            if line.startswith("Pss:")
        )

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as directory:
        result = os.path.join(directory, "result.json")
        command = [
            OOMPH,
            "run",
            "--quiet",
            "--gpu",
            f"h100-80gb:{ranks}",
            "--json",
            result,
            "--out",
            os.path.join(directory, "run"),
            *([] if fork else ["--no-fork"]),
            "--",
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            os.path.join(HERE, "jobs", "small.py"),
            mode,
        ]
        began = time.time()
        process = subprocess.run(command, capture_output=True, text=True)
        seconds = time.time() - began
        over.set()
        watcher.join()
        decoder, rows = json.JSONDecoder(), []
        for start in re.finditer(r'\{"rank"', process.stdout):
            rows.append(decoder.raw_decode(process.stdout, start.start())[0])
        if (
            process.returncode
            or len(rows) != ranks
            or any(row["met"] != row["expected"] for row in rows)
        ):
            sys.exit(
                f"{ranks} ranks, {mode}: status {process.returncode}, {len(rows)} lines\n{process.stderr[-3000:]}"
            )
        summary = json.load(open(result))
    middle = lambda key: int(statistics.median(row[key] for row in rows))  # noqa: E731
    return dict(
        ranks=ranks,
        mode=mode,
        forked=fork,
        seconds=round(seconds, 1),
        together_bytes=most[0],
        private_bytes=middle("private"),
        resident_bytes=middle("resident"),
        verdict=summary["verdict"],
        recorded=len(summary["ranks"]),
        peaks=sorted({rank["peak"]["used_bytes"] for rank in summary["ranks"]}),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    for ranks in (2, 8, 64):
        for mode in ("ddp", "fsdp"):
            for fork in (True, False):
                if ranks * 0.35 * 2**30 > 0.8 * meminfo("MemAvailable") and not fork:
                    continue  # started each by itself they need more than there is
                rows.append(run(ranks, mode, fork))
                r = rows[-1]
                print(
                    f"{ranks:3} ranks {mode:5} {'forked' if fork else 'each by itself':15} {r['seconds']:6.1f} s, together {r['together_bytes'] / 2**30:5.2f} GiB, a rank's own {r['private_bytes'] / 2**20:4.0f} MiB",
                    flush=True,
                )
    if options.out:
        import torch

        machine = dict(cores=os.cpu_count(), memory_bytes=meminfo("MemTotal"))
        with open(options.out, "w") as file:
            json.dump(
                dict(
                    date=time.strftime("%Y-%m-%d"),
                    command="python bench/distributed/many.py --out results/many.json",
                    machine=machine,
                    torch=torch.__version__,
                    python=sys.version.split()[0],
                    runs=rows,
                ),
                file,
                indent=1,
            )
            file.write("\n")


if __name__ == "__main__":
    main()
