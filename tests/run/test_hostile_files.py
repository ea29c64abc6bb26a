"""Files of strangers: nothing in them acts on the terminal or becomes part of a page."""

import json
import os
import pickle
import pty
import re
import struct
import subprocess
import unicodedata

import pytest

from tests.support.command import OOMPH

NAME = "\x1b]0;title\x07\x1b[2J\x1b[8mhidden\x9b31m\r\nforged: line\u202eevil\u2066\x7f</script><img src=x onerror=1>"
STYLE = re.compile("\x1b\\[(0|1|2|3[1-6]|9[1-6]|38;5;(9|1[0-4]))m")


def snapshot():
    frame = dict(filename=NAME + ".py", line=1, name=NAME)
    big = 1 << 30

    def event(action, address, size, time, **more):
        return dict(
            action=action, addr=address, size=size, stream=0, time_us=time, device=0, frames=[frame], **more
        )  # fmt: skip

    segment = dict(
        device=0, address=big, total_size=big, allocated_size=big, active_size=big, requested_size=big,
        stream=0, segment_type="large", segment_pool_id=(0, 0), is_expandable=False, frames=[frame],
        blocks=[dict(address=big, size=big, requested_size=big, state="active_allocated", frames=[frame])],
    )  # fmt: skip
    trace = [
        event("segment_alloc", big, big, 1),
        event("alloc", big, big, 2),
        event("oom", 1 << 20, big, 3),
    ]
    settings = dict(PYTORCH_CUDA_ALLOC_CONF=NAME)
    return pickle.dumps(
        dict(segments=[segment], device_traces=[trace], allocator_settings=settings), protocol=4
    )


LOG = f"""Traceback (most recent call last):
  File "{NAME}.py", line 3, in {NAME}
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {NAME} GPU 0 has a total capacity of 8.00 GiB
"""
CODE = f"""
import torch
def train(model, loader):
    total = 0
    for batch in loader:
        loss = model(batch)  # \u202e \x9b31m
        loss.backward()
        total += loss
        text = "{NAME.splitlines()[0][:-1]}"
"""


def safetensors():
    header = json.dumps({NAME: dict(dtype="F32", shape=[4], data_offsets=[0, 16])}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


@pytest.fixture
def place(tmp_path):
    for name, contents in {
        "s.pickle": snapshot(),
        "t.pickle": snapshot(),
        "log.txt": LOG.encode(),
        f"{NAME.replace('/', '')}.log": LOG.encode(),
        "code.py": CODE.encode(),
        f"{NAME.replace('/', '')}.py": CODE.encode(),
        "m.safetensors": safetensors(),
        "plan.toml": b'format = "oomph.plan/1"\n[[lever]]\nname = "\\u001b]0;x\\u0007\\u202e"\n',
        "broken.pickle": b"\x80\x04cos\nsys\x1b[2J\xc2\x9btem\n(S'x'\ntR.",
        "job.py": b"print('ran')\n",
    }.items():
        (tmp_path / name).write_bytes(contents)
    return tmp_path


COMMANDS = [
    "explain s.pickle",
    "explain log.txt",
    "explain *.log",
    "explain --json - s.pickle --no-report",
    "explain --json - log.txt",
    "explain broken.pickle",
    "replay s.pickle --memory 512MiB",
    "diff s.pickle t.pickle",
    "report s.pickle --export json --out -",
    "lint .",
    "lint --output-format concise .",
    "lint --output-format json .",
    "lint --output-format github .",
    "estimate m.safetensors",
    "estimate --all m.safetensors",
    "estimate --json - m.safetensors",
    "gpus $NAME",
    "run --gpu $NAME job.py",
    "run --gpu t4 --plan plan.toml job.py",
]


def acting(text):
    """The characters that act on a terminal, without lines and oomph's own styles."""
    directions = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return {
        character
        for character in STYLE.sub("", text)
        if (unicodedata.category(character) == "Cc" and character != "\n")
        or unicodedata.bidirectional(character) in directions
    }


def in_terminal(words, place):
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["sh", "-c", words], cwd=place, stdout=theirs, stderr=theirs, env=ENV
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        if not part:
            break
        output += part
    os.close(ours)
    process.wait()
    return output.replace(b"\r\n", b"\n").decode()


ENV = {**os.environ, "NAME": NAME, "TERM": "xterm", "LANG": "C.UTF-8"}


@pytest.mark.parametrize("words", COMMANDS)
def test_nothing_acts_on_the_terminal(place, words):
    line = f"{OOMPH} " + words.replace("$NAME", '"$NAME"')
    piped = subprocess.run(["sh", "-c", line], cwd=place, capture_output=True, env=ENV, timeout=60)
    text = (piped.stdout + piped.stderr).decode()
    assert text and "panicked" not in text
    assert acting(text) == set()
    assert acting(in_terminal(line, place)) == set()
    # What the user types may have lines.
    assert "\nforged" not in text or "$NAME" in words


def test_nothing_becomes_part_of_the_page(place):
    done = subprocess.run([OOMPH, "report", "s.pickle", "--out", "page.html"], cwd=place)
    page = (place / "page.html").read_text()
    assert done.returncode == 0
    assert "onerror" not in page and page.lower().count("</script>") == page.lower().count(
        "<script"
    )
