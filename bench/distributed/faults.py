"""One rank goes wrong: does the run end within 30 s with its name? `faults.py --out results/faults.json [N]`.

N runs (64 unless given) over kinds of faults, jobs (plain, DDP, FSDP2, tensor parallel), launchers,
2 to 8 ranks and culprits.
"""

import argparse, json, os, re, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.dirname(sys.executable)
KINDS = (
    "oom",
    "killed",
    "exit",
    "error",
    "operation",
    "count",
    "type",
    "sleep",
    "order",
    "skip",
    "segfault",
    "reduction",
    "lock",
    "pipe",
    "receive",
    "extra",
)
# Between two ranks nobody can say who is right where they call different things: both are told.
DISAGREE = ("operation", "count", "type", "order", "skip", "reduction", "receive", "extra")
JOBS, WORLDS, LIMIT = ("plain", "ddp", "fsdp", "tp"), (2, 3, 4, 5, 6, 7, 8), 30
LAUNCHERS = {
    "torchrun": lambda ranks, port: ["torchrun", "--standalone", "--nproc-per-node", str(ranks)],
    "module": lambda ranks, port: [
        "python",
        "-m",
        "torch.distributed.run",
        "--master-port",
        port,
        "--nproc-per-node",
        str(ranks),
    ],
    "accelerate": lambda ranks, port: [
        "accelerate",
        "launch",
        "--multi_gpu",
        "--num_processes",
        str(ranks),
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        port,
    ],
    "spawn": lambda ranks, port: [],
}


def cases(count):
    for number in range(count):
        # Another job and launcher at every round of the kinds, another number of ranks and culprit each time.
        kind, turn, launchers = KINDS[number % len(KINDS)], number // len(KINDS), list(LAUNCHERS)
        world = WORLDS[(3 * number + turn) % len(WORLDS)]
        job = JOBS[(number + turn) % len(JOBS)]
        # 840 columns are divided by all of 2 to 8.
        yield dict(
            number=number,
            kind=kind,
            job=job,
            launcher=launchers[(number // 2 + turn) % len(launchers)],
            ranks=world,
            culprit=number % world,
        )


def run(case):
    with tempfile.TemporaryDirectory() as directory:
        result = os.path.join(directory, "result.json")
        command = [
            os.path.join(BIN, "oomph"),
            "run",
            "--quiet",
            "--no-measure",
            "--gpu",
            f"h100-80gb:{case['ranks']}",
            "--json",
            result,
            "--out",
            os.path.join(directory, "run"),
            "--",
            *LAUNCHERS[case["launcher"]](
                case["ranks"], str(21000 + os.getpid() % 9000 + case["number"])
            ),
            os.path.join(HERE, "jobs", "faulty.py"),
            case["kind"],
            case["job"],
            str(case["culprit"]),
            str(case["ranks"]),
        ]
        began = time.time()
        process = subprocess.run(command, capture_output=True, text=True, timeout=300)
        ended = time.time()
        # Importing and building come first: the limit is for what follows the fault.
        fault = re.search(r"fault at ([\d.]+)", process.stderr)
        if fault is None:
            return dict(
                case,
                status=process.returncode,
                good=False,
                seconds=0,
                named=None,
                what="the fault did not happen: " + process.stderr[-300:],
            )
        case = dict(
            case,
            status=process.returncode,
            seconds=round(ended - float(fault[1]), 1),
            whole_run_seconds=round(ended - began, 1),
            named=None,
            what="",
        )
        if os.path.exists(result):
            culprit = json.load(open(result)).get("culprit")
            if culprit:
                case.update(
                    named=culprit["rank"], what=culprit["failure"][:200], found=culprit["kind"]
                )
        between_two = case["ranks"] == 2 and case["kind"] in DISAGREE
        told = case["named"] == case["culprit"] or (
            between_two and "rank 0" in case["what"] and "rank 1" in case["what"]
        )
        return dict(case, good=bool(told and case["status"] != 0 and case["seconds"] <= LIMIT))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("count", nargs="?", type=int, default=64)
    parser.add_argument("--out")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    options = parser.parse_args()
    rows = []
    for r in ThreadPoolExecutor(options.at_once).map(run, cases(options.count)):
        rows.append(r)
        write(options, rows)
        print(
            "good" if r["good"] else "BAD ",
            r["kind"],
            r["job"],
            r["launcher"],
            f"{r['ranks']} ranks, culprit {r['culprit']}, named {r['named']}, {r['seconds']} s, status {r['status']}: {r['what'][:150]}",
            flush=True,
        )
    print(sum(r["good"] for r in rows), "of", len(rows))


def write(options, rows):
    # After each run, so that what was measured stays when time runs out.
    if options.out:
        command = f"python bench/distributed/faults.py --at-once {options.at_once} {options.count}"
        with open(options.out, "w") as file:
            json.dump(
                dict(
                    date=time.strftime("%Y-%m-%d"),
                    command=command,
                    good=sum(r["good"] for r in rows),
                    runs=len(rows),
                    cases=rows,
                ),
                file,
                indent=1,
            )
            file.write("\n")


if __name__ == "__main__":
    main()
