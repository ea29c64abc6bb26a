"""What a step under `oomph run --net` costs at least, from what the net recorded of it (`log=FILE`): no GPU needed.

    python bench/gpu/net.py ... --log FOLDER
    python bench/gpu/net_replay.py FOLDER/*.log

A log has, of the step that the net learned, its units, its launches, and what each launch reads and writes of each
unit. One line of JSON a log: bytes of segments over the room on the device, and how long they take over the link;
what share of the time on the link nothing in the record explains; and, if units moved by Belady's rule at the
borders of windows and kernels read nothing on the host, how many bytes that would be each way, and how long the
moves would take in pauses, with copies inside the pauses (as the net does it) and with copies beside kernels.
"""

import ast
import bisect
import json
import sys
from pathlib import Path

LINK = 55e9
"""Bytes a second each way, by the copy engines."""
PAUSE = {"copies in pauses": 0.90e-3, "copies beside kernels": 0.46e-3}
"""Seconds for a unit of 20 MiB out and another back: 0.46 ms are mappings (`results/h200_net_facts.jsonl`)."""
UNIT = 20 << 20


def read(path):
    """The last step that was recorded: room in bytes, sizes of units in bytes, launches, and the share not foreseen."""
    found, head, launches = None, None, []
    for line in Path(path).read_text(errors="replace").splitlines():
        if line.startswith("trace {"):
            head, launches = ast.literal_eval(line.removeprefix("trace ")), []
        elif line.startswith("launch (") and head:
            launches.append(ast.literal_eval(line.removeprefix("launch ")))
        elif line.startswith("trace end") and head:
            found = head["capacity"], [size for _, size in head["units"]], launches
    return found


def not_foreseen(launches):
    """The share of the time on the link in launches that should have touched nothing on the host."""
    lost = spent = 0
    for _, _, _, seen in launches:
        fastest = min((took for took, _ in seen), default=0)
        spent += sum(took - fastest for took, _ in seen)
        lost += sum(took - fastest for took, on_host in seen if not on_host)
    return lost / spent if spent else 0


def needed(launches, count):
    """The units that each of `count` windows reads or writes; windows touch as many bytes each."""
    touched = [sum(size for _, size, near, _ in units if near) for _, _, units, _ in launches]
    begins, total = [0], 0
    for launch, size in enumerate(touched):
        due = sum(touched) * len(begins) / count
        if len(begins) < count and total >= due and launch > begins[-1]:
            begins.append(launch)
        total += size
    windows = [set() for _ in begins]
    for launch, (_, _, units, _) in enumerate(launches):
        window = windows[bisect.bisect_right(begins, launch) - 1]
        window.update(unit for unit, size, _, crossed in units if crossed > size // 20)
    return windows


def belady(windows, sizes, room):
    """Bytes that come back in a step when whoever is needed last makes room."""
    count, on_device, moved = len(windows), set(), 0

    def ahead(unit, window):
        return next((n for n in range(1, count) if unit in windows[(window + n) % count]), count)

    for _ in range(2):
        moved = 0
        for window in range(count):
            used = sum(sizes[unit] for unit in on_device)
            last = sorted(on_device - windows[window], key=lambda unit: ahead(unit, window))
            for unit in windows[window] - on_device:
                while last and used + sizes[unit] > room:
                    out = last.pop()
                    on_device.remove(out)
                    used -= sizes[out]
                if used + sizes[unit] <= room:
                    on_device.add(unit)
                    used += sizes[unit]
                    moved += sizes[unit]
    return moved


def main():
    for path in sys.argv[1:]:
        step = read(path)
        if step is None:
            print(f"{path}: no step was recorded", file=sys.stderr)
            continue
        room, sizes, launches = step
        moved = belady(needed(launches, 48), sizes, room)
        over = sum(sizes) - room
        print(
            json.dumps(
                dict(
                    log=Path(path).stem,
                    units_mib=sum(sizes) >> 20,
                    over_mib=over >> 20,
                    over_on_link_ms=round(over / LINK * 1e3, 1),
                    not_foreseen=round(not_foreseen(launches), 3),
                    belady_mib=moved >> 20,
                    belady_on_link_ms=round(moved / LINK * 1e3, 1),
                    pauses_ms={
                        how: round(moved / UNIT * each * 1e3, 1) for how, each in PAUSE.items()
                    },
                )
            )
        )


if __name__ == "__main__":
    main()
