"""Starts vLLM on virtual GPUs as people posted that they had started it: `python bench/serving/virtual.py OUT.jsonl [ID…]`.

`--held-out` starts those that were kept until the code was done; `--table` only prints the table of a file.
"""

import argparse
import json
import os
import platform
import re
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
    """The first start of a model, which compiles it; if one was posted, one that finds what that compiled: it has more cache."""
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, posted["model"])
        model.mkdir()
        configs = tomllib.loads((HERE / "models.toml").read_text())
        (model / "config.json").write_text(json.dumps(configs[posted["model"]]))
        first = once(posted, place, model)
        if first["verdict"] == "fits" and "later" in posted:
            first["again"] = once(posted, place, model)
    return first


def once(posted, place, model):
    args = posted["args"] | {"server": posted.get("server", False)}
    memory = ["--memory", posted["memory"]] if "memory" in posted else []
    command = [
        Path(sys.executable).with_name("oomph"), "run", "--gpu", posted["gpu"], *memory, "--out", f"{place}/run",
        "--json", f"{place}/x.json", HERE / "engine.py", model, json.dumps(args),
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
    said.unlink(missing_ok=True)
    set_apart = re.search(r"set apart by 0.27 (\d+)", done.stdout)
    return dict(
        set_apart_by_027=int(set_apart[1]) if set_apart else None,
        id=posted["id"], status=done.returncode, verdict=found.get("verdict"), engine=found.get("engine"), peak=found.get("peak"),
        seconds=round(time.monotonic() - began, 1), cpu_seconds=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        load=os.getloadavg()[0], largest_process_kib=after.ru_maxrss, end=None if found else done.stderr[-400:],
    )  # fmt: skip


def tokens(engine, version, set_apart):
    """Of the KV cache, by the rule of the `version` that somebody posted: 0.27 sets other amounts apart."""
    if version is None or tuple(map(int, version.split("."))) < (0, 27) or not set_apart:
        return engine.get("kv_cache_tokens", 0)
    each = engine["kv_cache_bytes"] / engine["kv_cache_tokens"]
    return int((engine["allowed_bytes"] - set_apart) / each) // 16 * 16


def table(all_posted, rows):
    print("| start | vLLM there | posted | here (0.26.0) | off | by its rule | off | CPU s |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for posted in all_posted:
        row = rows.get(posted["id"])
        if row is None:
            continue
        rounds = {0: "", 1: " (held out)", 2: " (held out, second)"}
        name = posted["id"] + rounds[int(posted.get("held_out", 0))]
        for real, found, when in (
            (posted, row, ""),
            (posted.get("later", {}), row.get("again"), ", later"),
        ):
            if not found or "tokens" not in real:
                continue
            engine, version = found["engine"] or {}, posted.get("vllm")
            here = engine.get("kv_cache_tokens", 0)
            by_rule = tokens(engine, version, found.get("set_apart_by_027"))
            off, off_by_rule = (f"{n / real['tokens'] - 1:+.2%}" for n in (here, by_rule))
            print(
                f"| {name}{when} | {version or '?'} | {real['tokens']:,} | {here:,} | {off} | {by_rule:,} | {off_by_rule} | {found['cpu_seconds']} |"
            )
        if posted.get("fails"):
            print(f"| {name} | | | {row['verdict']} | | | | {row['cpu_seconds']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--held-out", type=int, default=0, choices=(0, 1, 2))
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
                    and int(posted.get("held_out", 0)) == given.held_out
                ):
                    out.write(json.dumps(start(posted)) + "\n")
                    out.flush()
    table(all_posted, {row["id"]: row for row in map(json.loads, open(given.out)) if "id" in row})


if __name__ == "__main__":
    main()
