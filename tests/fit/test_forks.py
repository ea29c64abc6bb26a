"""`oomph fit` forks its runs from a process of its own (`oomph._forks`)."""

import os

from tests.support import forked
from tests.support.command import fit

CODE = """
    import ctypes, torch
    from torch import nn

    def blas():
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
        for library in map(ctypes.CDLL, paths):
            for name in ("openblas_get_num_threads", "scipy_openblas_get_num_threads64_"):
                if hasattr(library, name):
                    return getattr(library, name)()

    with open("runs", "a") as file:
        print(b"_forks" in open("/proc/self/cmdline", "rb").read(), blas(), torch.get_num_threads(), file=file)
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_its_runs_are_forked_and_have_their_threads(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(forked.FORKS, "")
    assert fit(tmp_path, CODE).status == 0
    monkeypatch.delenv(forked.FORKS)
    assert fit(tmp_path, CODE).status == 0
    kinds = set((tmp_path / "runs").read_text().splitlines())
    cores = len(os.sched_getaffinity(0))
    assert kinds == {f"{kind} {cores} {cores}" for kind in (False, True)}, kinds
