"""What an earlier start of vLLM had loaded is read ahead."""

import ctypes
import mmap
import os
import subprocess
import sys
import time

import pytest
from oomph._recorder import read_ahead


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "oomph" / "vllm"


def in_memory(path):
    """How many pages of a file are in memory, without touching them."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        start = ctypes.addressof(place := ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_size_t(len(mapped))
        assert libc.mincore(ctypes.c_void_p(start), size, pages) == 0
        del place
        return sum(page & 1 for page in pages)


def test_a_start_that_names_vllm_reads_ahead_what_the_last_one_had_loaded(
    kept, tmp_path, monkeypatch
):
    # One file may be two modules.
    monkeypatch.setitem(sys.modules, "subprocess_again", subprocess)
    read_ahead.keep()
    (listed,) = kept.iterdir()
    found = listed.read_text().splitlines()
    assert subprocess.__cached__ in found and any("libc.so" in path for path in found)
    assert len(found) == len(set(found)) and all(map(os.path.exists, found))

    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20))
    with open(large, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(large):
        pytest.skip("a file system in memory")
    listed.write_text(f"/nowhere\n{large}")
    script = tmp_path / "script.py"
    script.write_text("import torch")
    read_ahead.begin([str(script)])
    read_ahead.begin(["-m", "pip"])
    time.sleep(0.5)
    assert in_memory(large) == 0
    script.write_text("from vllm import LLM")
    read_ahead.begin([str(script)])
    until = time.monotonic() + 30
    while in_memory(large) < 256 and time.monotonic() < until:
        time.sleep(0.05)
    assert in_memory(large) == 256


def test_nobody_waits_for_what_is_read_ahead(kept, tmp_path):
    kept.mkdir(parents=True)
    slow = tmp_path / "slow"
    os.mkfifo(slow)  # opened until somebody writes to it
    script = tmp_path / "script.py"
    script.write_text("import vllm")
    begins = f"from oomph._recorder import read_ahead as r\nopen(r._list(), 'w').write({str(slow)!r})\nr.begin([{str(script)!r}])"
    done = subprocess.run([sys.executable, "-c", begins], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    os.close(os.open(slow, os.O_WRONLY | os.O_NONBLOCK))  # it reads, and ends


def test_a_user_without_a_home_keeps_no_list(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert read_ahead._list() is None
    read_ahead.keep()
    read_ahead.begin(["vllm"])
