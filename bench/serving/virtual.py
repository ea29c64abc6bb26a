"""Starts vLLM on virtual GPUs as people posted that they had started it: `python bench/serving/virtual.py OUT.jsonl [ID…]`.

`--held-out` starts those that were kept until the code was done; `--table` only prints the table of a file.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).parent


def start(posted):
    """The first start of a model, which compiles it, and one that finds what that compiled: their caches differ on a GPU, too."""
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, posted["model"])
        model.mkdir()
        configs = tomllib.loads((HERE / "models.toml").read_text())
        (model / "config.json").write_text(json.dumps(configs[posted["model"]]))
        first = once(posted, place, model)
        if first["verdict"] == "fits" and not posted["args"].get("enforce_eager"):
            again = once(posted, place, model)
            first["again"] = dict(
                kv_cache_tokens=again["engine"]["kv_cache_tokens"], kv_cache_bytes=again["engine"]["kv_cache_bytes"],
                cpu_seconds=again["cpu_seconds"],
            )  # fmt: skip
    return first


def once(posted, place, model):
    command = [
        Path(sys.executable).with_name("oomph"), "run", "--gpu", posted["gpu"], "--out", f"{place}/run", "--json", f"{place}/x.json",
        HERE / "engine.py", model, json.dumps(posted["args"]),
    ]  # fmt: skip
    caches = {
        name: f"{place}/{name}"
        for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    environment = os.environ | caches | {"HF_HUB_OFFLINE": "1"} | posted.get("environment", {})
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = Path(place, "x.json")
    found = json.loads(said.read_text()) if said.is_file() else {}
    return dict(
        id=posted["id"], status=done.returncode, verdict=found.get("verdict"), engine=found.get("engine"), peak=found.get("peak"),
        seconds=round(time.monotonic() - began, 1), cpu_seconds=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        load=os.getloadavg()[0], largest_process_kib=after.ru_maxrss, end=None if found else done.stderr[-400:],
    )  # fmt: skip


def table(all_posted, rows):
    print("| start | vLLM there | posted | here (0.26.0) | off | CPU s |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for posted in all_posted:
        row = rows.get(posted["id"])
        if row is None:
            continue
        engine = row["engine"] or {}
        tokens = "tokens" in posted
        real = posted["tokens"] if tokens else posted["available_gib"]
        here = (
            engine.get("kv_cache_tokens", 0) if tokens else engine.get("kv_cache_bytes", 0) / 2**30
        )
        shown = (f"{real:,}", f"{here:,}") if tokens else (f"{real:.2f} GiB", f"{here:.2f} GiB")
        name = posted["id"] + (" (held out)" if posted.get("held_out") else "")
        if posted.get("fails"):
            name += f": {row['verdict']}"
        print(
            f"| {name} | {posted.get('vllm', '?')} | {shown[0]} | {shown[1]} | {(here - real) / real:+.2%} | {row['cpu_seconds'] or '–'} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    all_posted = tomllib.loads((HERE / "posted.toml").read_text())["posted"]
    if not given.table:
        with open(given.out, "a") as out:
            about = {
                "machine": platform.machine(),
                "cores": os.cpu_count(),
                "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                "python": platform.python_version(),
            }
            out.write(json.dumps(about) + "\n")
            for posted in all_posted:
                if (
                    posted["id"] in given.ids
                    or not given.ids
                    and bool(posted.get("held_out")) == given.held_out
                ):
                    out.write(json.dumps(start(posted)) + "\n")
                    out.flush()
    table(all_posted, {row["id"]: row for row in map(json.loads, open(given.out)) if "id" in row})


if __name__ == "__main__":
    main()
