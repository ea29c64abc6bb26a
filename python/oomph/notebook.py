"""The report inside a notebook.

    %load_ext oomph

    %%oomph --gpu rtx-4090
    model = build().cuda()
    ...

The cell runs as a script in its own process, on the named GPU: a virtual GPU must be
loaded before CUDA, so it cannot be in the kernel. `--cells 1-4` puts earlier cells of the notebook
before it; all other options are those of `oomph run`. The cell's output and the summary follow
it, then the report, which the notebook keeps.

`%oomph RUN` shows the report of an existing run or snapshot.
"""

from __future__ import annotations

import html
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from oomph._protocol import File, RunDirectory

HEIGHT = 900
"""Pixels of the report in the notebook; it scrolls by itself."""

USAGE = (
    "%%oomph [--cells RANGES] [--height PIXELS] [options of oomph run], then the code; "
    "or %oomph RUN"
)


class UsageError(Exception):
    """Wrong options; the message says what was expected."""


def load(shell: Any) -> None:
    """Register the magic in an IPython shell; `%load_ext oomph` calls it."""
    shell.register_magic_function(
        lambda line, cell=None: magic(shell, line, cell), "line_cell", "oomph"
    )


def magic(shell: Any, line: str, cell: str | None) -> None:
    """Run a cell, or show a report."""
    try:
        words, cells, height = _options(line)
        page = _show(words) if cell is None else _run(_code(shell, cells, cell), words)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return
    if page is not None:
        from IPython.display import HTML, display

        display(HTML(frame(page.read_text(encoding="utf-8"), height)))


def frame(page: str, height: int = HEIGHT) -> str:
    """Put a report's HTML into a sandboxed frame; `height` is in pixels."""
    return (
        # Within a div, because IPython warns about a bare frame.
        f'<div><iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:1px solid #ccc;border-radius:8px"></iframe></div>'
    )


def _options(line: str) -> tuple[list[str], str, int]:
    """Split the magic's own options from those of `oomph run`."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error} in {line!r}. Usage: {USAGE}") from None
    own = {"--cells": "", "--height": str(HEIGHT)}
    rest = []
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name not in own:
            rest.append(word)
            continue
        if not value:
            if not words:
                raise UsageError(f"{name} needs a value. Usage: {USAGE}")
            value = words.pop(0)
        own[name] = value
    if not own["--height"].isdigit():
        raise UsageError(f"--height: expected a number of pixels, found {own['--height']!r}")
    return rest, own["--cells"], int(own["--height"])


def _code(shell: Any, cells: str, cell: str) -> str:
    """The cell's code, preceded by that of earlier cells without their magics."""
    earlier = shell.extract_input_lines(cells, raw=True) if cells else ""
    if cells and not earlier.strip():
        raise UsageError(
            f"--cells {cells}: these cells have not run. Give numbers, such as 1-4 or 2"
        )
    lines = []
    for code in (earlier, cell):
        lines += [line for line in code.splitlines() if not line.lstrip().startswith(("%", "!"))]
    return "\n".join(lines) + "\n"


def _run(code: str, words: list[str]) -> Path | None:
    """Run code with `oomph run`; its report, or None where there is none."""
    if "--out" in words:
        raise UsageError("--out is not available here: a cell's run goes to oomph-report/cell-N")
    directory = _free_directory()
    RunDirectory(directory).make()
    script = directory / File.CELL.value
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "oomph", "run", *words, "--out", str(directory), str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="")
    page = directory / File.PAGE.value
    return page if page.exists() else None


def _show(words: list[str]) -> Path:
    """The report of an existing run or snapshot."""
    if len(words) != 1:
        raise UsageError(f"expected one run or snapshot, found {len(words)}. Usage: {USAGE}")
    page = Path(words[0]) / File.PAGE.value
    if page.exists():
        return page
    command = [sys.executable, "-m", "oomph", "report", words[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(done.stderr.strip().removeprefix("error: "))
    return Path(done.stdout.strip())


def _free_directory() -> Path:
    number = 1
    while (directory := Path("oomph-report") / f"cell-{number}").exists():
        number += 1
    return directory
