"""The pages of the documentation: their blocks of code, and running them."""

import os
import pathlib
import re
import subprocess
from dataclasses import dataclass, field

from tests.support.command import BIN, ROOT

DOCS = pathlib.Path(ROOT, "docs")
OUTPUT = "@out"
"""Where a command's output is written by `OOMPH_UPDATE_DOCS=1`, in a page that does not have it yet."""
SECONDS = 600
RUNS = {"bash", "console", "python"}
DATA = {"json", "toml", "yaml"}


@dataclass
class Block:
    """A fenced block. `elsewhere` is what its marker says: the test that runs it, or why none can."""

    language: str
    text: str
    line: int
    elsewhere: str = ""


@dataclass
class Command:
    """A command of a console, and the lines that the page shows of its output."""

    words: str
    shown: list = field(default_factory=list)


def pages():
    """All pages, by their names below `docs`."""
    return {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}


def blocks(text):
    """The fenced blocks of a page. `<!-- not run: why -->` or `<!-- run by FILE -->` stands above those that are not run here."""
    found, marker = [], ""
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        fence = re.match(r"^( *)(`{3,})(\S*)\s*$", line)
        if fence:
            indent, ticks, language = fence.groups()
            inside = []
            for _, rest in lines:
                if rest.strip() == ticks:
                    break
                inside.append(rest.removeprefix(indent))
            found.append(Block(language, "\n".join(inside), number, marker))
        stripped = re.match(r"^<!-- ((?:not run|run by).*) -->$", line.strip())
        if stripped or line.strip():
            marker = stripped.group(1) if stripped else ""
    return found


def needs(text):
    """The packages that a page's scripts import and that are not among `requirements.txt`: `<!-- needs: PACKAGE -->`."""
    return re.findall(r"^<!-- needs: (\w+) -->$", text, re.MULTILINE)


def files(text):
    """What a page's commands find in their folder: `<!-- NAME: FILE OF THE REPOSITORY -->`."""
    found = dict(re.findall(r"^<!-- ([\w.-]+): ([\w./-]+) -->$", text, re.MULTILINE))
    found.pop("needs", None)
    return found


def commands(block):
    """The commands of a block."""
    if block.language == "bash":
        return [Command(line) for line in block.text.split("\n") if line and line[0] != "#"]
    found = []
    for line in block.text.split("\n"):
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line.strip():
            found[-1].shown.append(line)
    return found


def steady(line):
    """A line without what differs from run to run: times, and how wide a column is for them."""
    line = re.sub(r"\d[\d.,]* ?(?:µs|ms|s|min)\b|\d+ samples/s", "#", line)
    return re.sub(r"[ ─]+", " ", line).strip()


def missing(shown, printed):
    """The first shown line that the output does not have, after those before it; None if it has all. `…` stands for any lines."""
    rest = iter([steady(line) for line in printed.split("\n")])
    for line in shown:
        if line.strip() != "…" and steady(line) not in rest:
            return line
    return None


def environment():
    """The installed command, on a terminal of 100 columns."""
    path = os.pathsep.join([BIN, os.environ["PATH"]])
    return {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


def run(words, place):
    """What a command prints to stdout. It ends with 0, or with 3: memory ran out, as the page wants to show."""
    done = subprocess.run(
        ["bash", "-c", words], cwd=place, capture_output=True, text=True, timeout=SECONDS, env=environment()
    )  # fmt: skip
    assert done.returncode in (0, 3), f"$ {words}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(page, place, update=False):
    """Follow a page in a folder: write its files, run its blocks, and compare what they print with what it shows.

    With `update`, fill in output that is not there yet. Returns the page's text.
    """
    text = page.read_text()
    for folder in ("examples", "fixtures"):
        (place / folder).symlink_to(pathlib.Path(ROOT, folder))
    for name, source in files(text).items():
        (place / name).write_bytes(pathlib.Path(ROOT, source).read_bytes())
    for block in blocks(text):
        named = re.match(r"# ([\w.-]+\.(?:py|toml))\n", block.text)
        if named:
            (place / named.group(1)).write_text(block.text + "\n")
        if block.elsewhere or named or block.language not in RUNS:
            continue
        if block.language == "python":
            (place / "block.py").write_text(block.text + "\n")
            run("oomph run --gpu rtx-3060 --no-measure block.py", place)
            continue
        for command in commands(block):
            printed = run(command.words, place)
            if update and OUTPUT in command.shown:
                text = text.replace(
                    f"$ {command.words}\n{OUTPUT}\n", f"$ {command.words}\n{printed.rstrip()}\n", 1
                )
                continue
            lost = missing(command.shown, printed)
            assert lost is None, (
                f"{page.name}: $ {command.words}\nshows: {lost}\nprints:\n{printed}"
            )
    return text
