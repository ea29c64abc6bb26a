"""Ranks of a Llama of 70 billion parameters on 1024 GPUs, one after the other: `rehearsal.py [--out results/rehearsal.json]`.

`llama70b.py`'s configuration, built on the meta device and on the CPU. `seconds` is a rank's whole run,
its report included; `max_rss_bytes` the most that one process held (`getrusage` of the children).
"""

import argparse, json, os, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")
RANKS, WORLD, GPU = (0, 511, 1023), 1024, "h100-80gb"


def run(rank, *words):
    with tempfile.TemporaryDirectory() as directory:
        result = os.path.join(directory, "result.json")
        command = [
            "oomph",
            "run",
            "--gpu",
            GPU,
            "--world-size",
            str(WORLD),
            "--ranks",
            str(rank),
            "bench/distributed/jobs/llama70b.py",
            *words,
        ]
        # A process of its own: the largest of all children is what `getrusage` keeps.
        measured = f"import json, resource, subprocess, sys, time; t = time.time(); r = subprocess.run({[OOMPH, 'run', '-q', '--json', result, '--out', directory, *command[2 : -1 - len(words)], os.path.join(HERE, 'llama70b.py'), *words]!r}); print(json.dumps([r.returncode, time.time() - t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10]))"
        process = subprocess.run([sys.executable, "-c", measured], capture_output=True, text=True)
        status, seconds, rss = json.loads(process.stdout.splitlines()[-1])
        if status:
            sys.exit(
                f"rank {rank} ended with status {status}:\n{process.stdout[-1000:]}{process.stderr[-3000:]}"
            )
        summary = json.load(open(result))
        parameters = int(
            next(
                line for line in process.stdout.splitlines() if line.startswith("parameters")
            ).split()[1]
        )
        return dict(
            command=" ".join(command),
            rank=rank,
            parameters=parameters,
            seconds=round(seconds, 1),
            max_rss_bytes=rss,
            verdict=summary["verdict"],
            peak=summary["ranks"][0]["peak"],
            assumptions=[a["what"] for a in summary["assumptions"]],
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    for words in (("meta", "bf16"), ("cpu", "bf16")):
        for rank in RANKS:
            rows.append(run(rank, *words))
            r = rows[-1]
            print(
                f"rank {rank:4} of {WORLD}, built on {words[0]:4} {r['seconds']:6.1f} s, {r['max_rss_bytes'] / 2**30:.2f} GiB here; {r['verdict']}, {r['peak']['used_bytes'] / 2**30:.2f} GiB there",
                flush=True,
            )
    if options.out:
        import torch, transformers

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with open(options.out, "w") as file:
            json.dump(
                dict(
                    date=time.strftime("%Y-%m-%d"),
                    command="python bench/distributed/rehearsal.py --out results/rehearsal.json",
                    machine=dict(cores=os.cpu_count(), memory_bytes=memory),
                    torch=torch.__version__,
                    transformers=transformers.__version__,
                    runs=rows,
                ),
                file,
                indent=1,
            )
            file.write("\n")


if __name__ == "__main__":
    main()
