"""Has the system read what a start of vLLM will load, while its first imports run.

A start loads 2 GB, one file after another, and waits for each where the disk is slow. The list is what an earlier start had loaded.
"""

from __future__ import annotations

import hashlib
import os
import sys

_LARGEST = 128 << 20
"""Of larger libraries a start needs a part only, which the system reads when it is touched."""


def begin(argv: list[str]) -> None:
    """Begin to read, in a process of its own that nobody waits for, if `argv` starts a script or a module that names vLLM."""
    kept = _list()
    if kept is None or not os.path.exists(kept) or not _names_vllm(argv):
        return
    try:
        child = os.fork()
    except OSError:
        return
    if child == 0:
        try:
            if os.fork() == 0:
                os.closerange(
                    0, 1 << 10
                )  # whoever waits for the end of a pipe waits for the script alone
                read(kept)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def read(kept: str) -> None:
    """Have the system read all files of the list `kept`, as far as they are there."""
    with open(kept) as file:
        paths = file.read().splitlines()
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(fd)


def keep() -> None:
    """Keep what this process has loaded for later starts of the same environment."""
    kept = _list()
    if kept is None:
        return
    with open("/proc/self/maps") as file:
        mapped = [line.split(None, 5)[5:] for line in file]
    libraries = {name[0].strip() for name in mapped if name and ".so" in name[0]}
    # Asked of the dictionaries: some modules import what they are asked for. One file may be several modules.
    modules = [getattr(one, "__dict__", {}).get("__cached__") for one in [*sys.modules.values()]]
    compiled = {path for path in modules if isinstance(path, str)}
    found = sorted(filter(_is_read_whole, libraries)) + sorted(filter(_is_read_whole, compiled))
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        part = f"{kept}.{os.getpid()}"
        with open(part, "w") as out:
            out.write("\n".join(found))
        os.replace(part, kept)
    except OSError:  # a full disk is no reason to fail
        return


def _is_read_whole(path: str) -> bool:
    try:
        return os.stat(path).st_size <= _LARGEST and "\n" not in path
    except (OSError, ValueError):
        return False


def _list() -> str | None:
    """Where the list of this Python's packages is; None for a user without a home."""
    home = os.environ.get("HOME")
    base = os.environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
    if not base or not os.path.isabs(base):
        return None
    name = hashlib.sha256(f"{sys.prefix}\n{sys.version}".encode()).hexdigest()[:16]
    return os.path.join(base, "oomph", "vllm", name)


def _names_vllm(argv: list[str]) -> bool:
    if argv[0] == "-m":
        return argv[1].startswith("vllm")
    try:
        with open(argv[0], "rb") as script:
            return b"vllm" in script.read(1 << 20)
    except OSError:
        return False
