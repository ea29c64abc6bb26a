"""Every block of code in the documentation is run, or says which test runs it, or why none can."""

import json
import os
import re
from collections import Counter

import pytest

from tests.support import pages, reference

PAGES = pages.pages()

# Those that CI follows: each runs a script or reads a log, in some seconds. The rest is slow.
QUICK = [
    "symptoms/absurd-request.md",
    "symptoms/after-hours.md",
    "symptoms/collected-predictions.md",
    "symptoms/disguised.md",
    "symptoms/killed.md",
    "symptoms/plenty-free.md",
    "symptoms/servers.md",
    "symptoms/used-by-nobody.md",
]

NOT_RUN = 12
"""Blocks that no test runs; each says why, in the page."""


def has_commands(name):
    """Examples of the linter's rules are fragments, which the linter's own tests read."""
    found = pages.blocks(PAGES[name].read_text())
    return not name.startswith("rules/") and any(
        block.language in pages.RUNS and not block.elsewhere for block in found
    )


def follow(name, place):
    for package in pages.needs(PAGES[name].read_text()):
        pytest.importorskip(package)
    update = "OOMPH_UPDATE_DOCS" in os.environ
    text = pages.follow(PAGES[name], place, update)
    if update:
        PAGES[name].write_text(text)
    assert pages.OUTPUT not in text, "OOMPH_UPDATE_DOCS=1 fills it in"


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_page_does_what_it_says(name, tmp_path):
    follow(name, tmp_path)


@pytest.mark.parametrize("name", [n for n in PAGES if n not in QUICK and has_commands(n)])
def test_a_page_does_what_it_says(name, tmp_path):
    follow(name, tmp_path)


def test_blocks_that_are_not_run_are_counted():
    found = Counter()
    for name, page in PAGES.items():
        for block in pages.blocks(page.read_text()):
            where = f"{name}:{block.line}"
            if block.elsewhere.startswith("run by "):
                assert os.path.exists(
                    os.path.join(pages.ROOT, block.elsewhere[7:].split("::")[0])
                ), where
            elif block.elsewhere:
                found[block.elsewhere] += 1
            else:
                known = pages.RUNS | pages.DATA | {"", "text"}
                assert block.language in known or name.startswith("rules/"), where
    assert found.total() == NOT_RUN, found


def test_every_command_and_option_exists():
    """Also of blocks that are not run, and of commands within sentences."""
    known = {
        command: {*re.findall(r"--[a-z][a-z-]*", reference.help_of(command)), "--help", "--color"}
        for command in reference.all_commands()
    }
    wrong = []
    for name, page in PAGES.items():
        if name.startswith("reference/"):
            continue
        for words in re.findall(
            r"(?:^ {4,}|^\$ |`)oomph ([a-z]+\b[^`\n#|]*)", page.read_text(), re.MULTILINE
        ):
            command, *rest = words.split()
            own = " ".join(rest).split(" -- ")[0].split(".py")[0].split(" -m ")[0]
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", own))
            if command not in known or options - known.get(command, set()):
                wrong.append(f"{name}: oomph {words}")
    assert not wrong, "\n".join(wrong)


def test_data_is_data():
    """Examples of files can be read."""
    for page in PAGES.values():
        for block in pages.blocks(page.read_text()):
            if block.language == "json" and "…" not in block.text:
                json.loads(block.text)
            elif block.language == "toml" and "…" not in block.text:
                tomllib = pytest.importorskip("tomllib")
                tomllib.loads(block.text)
