"""Runs a script with levers and without them, on the CPU, in processes of their own."""

import functools
import multiprocessing
import os
import textwrap
import traceback

import torch

from tests.support import cpu_seconds

torch.set_num_threads(1)
_save = torch.save  # levers may change it for the script
# What the first step imports is imported once, before processes are forked: by a class that no test is about, as levers find
# the steps of a class in place once it has made an optimizer.
torch.optim.Rprop([torch.zeros(1)]).step()


class Result:
    """What a script left: its variables named `out`, the levers' reports, and how it ended."""

    def __init__(self, out, levers, refusal, error):
        self.out, self.refusal, self.error = out, refusal, error
        self.levers = {lever["name"]: lever for lever in levers}


def run(tmp_path, code, *levers, prelude=None, **names):
    """Run `code` with `levers` (`("micro_batch", dict(parts=2))`); its `out` is what is compared.

    The process is forked: torch is imported once. So is what `prelude` imports, a line of Python. The
    levers then find it in place; in a script they are there first, so not every test of a framework may
    have one.
    """
    path = str(tmp_path / f"result-{os.urandom(4).hex()}")
    job = path, textwrap.dedent(code), levers, names
    status = _with_prelude(prelude)(job) if prelude else _fork(job)
    assert os.waitstatus_to_exitcode(status) == 0, "the harness failed; see its traceback"
    result = Result(*torch.load(path, weights_only=False))
    if result.error:
        raise AssertionError(result.error)
    return result


def _fork(job):
    """Run `job` in a child; the status with which it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    # PyTorch makes its thread pool anew at the first call after a fork, which must not be two.
    torch.set_num_threads(1)
    status = 1
    try:
        path, *what = job
        _save(_run(*what), path)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@functools.cache
def _with_prelude(prelude):
    """A process that has run `prelude` and forks for each job; a function that gives it one."""
    mine, its = multiprocessing.Pipe()
    if os.fork() == 0:
        try:
            mine.close()
            counted = 0
            exec(prelude, {})
            while True:
                status = _fork(its.recv())
                counted, before = cpu_seconds.now(), counted
                its.send((status, counted - before))
        except EOFError:
            pass  # the tests have ended
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    its.close()

    def ask(job):
        mine.send(job)
        status, seconds = mine.recv()
        cpu_seconds.note(seconds)
        return status

    return ask


def _run(code, levers, names):
    from oomph.levers import Levers
    from oomph.levers._shared.base import CannotApply

    specifications = [{"name": name, **parameters} for name, parameters in levers]
    refusal = error = None
    scope = {"__name__": "__main__", "torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    scope.update(names)
    installed = None
    try:
        installed = Levers(specifications)
        installed.install()
        torch.manual_seed(0)
        # As a file, so that what looks at frames and lines finds one.
        exec(compile(code, "script.py", "exec"), scope)
    except CannotApply as stop:
        refusal = stop.message
    except BaseException:
        error = traceback.format_exc()
    return scope.get("out"), installed.report() if installed else [], refusal, error


def distance(a, b):
    """Relative L2 distance of two nestings of tensors."""
    a, b = _flat(a), _flat(b)
    assert a.shape == b.shape
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def same(a, b):
    """Bitwise, in any nesting."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def unlike(a, b, tolerance=0.0, place=""):
    """NamedModules in two nestings that differ by more than `tolerance` (relative L2; 0: bitwise)."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{place}: {a.keys() ^ b.keys()}"]
        return [p for k in a for p in unlike(a[k], b[k], tolerance, f"{place}/{k}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [p for i, (x, y) in pairs for p in unlike(x, y, tolerance, f"{place}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype == b.dtype and a.shape == b.shape:
            off = 0.0 if torch.equal(a, b) else distance(a, b)
            return [] if off <= tolerance else [f"{place}: {off:.1e}"]
    elif isinstance(a, float) and isinstance(b, float):
        return [] if abs(a - b) <= tolerance * abs(b) else [f"{place}: {a} {b}"]
    elif a == b:
        return []
    return [f"{place}: {a} {b}"]


def _flat(value):
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (int, float)):
        return torch.tensor([float(value)], dtype=torch.float64)
    return torch.cat([_flat(item) for item in value])
