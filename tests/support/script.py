"""A script in a fork of this process, which has imported torch: for scripts to which it does not matter how Python starts."""

import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback

import torch

# What the first step imports is imported once, before processes are forked.
torch.optim.AdamW([torch.zeros(1)]).step()


def python(path, *words, cwd=".", timeout=240):
    """As `subprocess.run([sys.executable, path, *words])`: what it printed, and its exit status."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(os.fspath(path), [os.fspath(word) for word in words], cwd, out, err)
        until = time.monotonic() + timeout
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.killpg(child, 9)
                until += timeout
            time.sleep(0.02)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess([path, *words], os.waitstatus_to_exitcode(ended[1]), *said)


def _become(path, words, cwd, out, err):
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        # PyTorch makes its thread pool anew at the first call after a fork, which must not be two.
        torch.set_num_threads(1)
        os.chdir(cwd)
        sys.argv[:] = [path, *words]
        runpy.run_path(path, run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
