"""A second's work that shows whether a torch nobody has tested oomph with behaves on the virtual GPU.

It runs in a fork of the script's process before that has used CUDA, on a virtual GPU of its own: nothing of it is left.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable

import torch

from oomph import _protocol
from oomph import _torch_features as torch_features

_PATIENCE = 60
"""How long it may take on a busy machine, in seconds."""


def failure(check: Callable[[], None] | None = None) -> str | None:
    """What does not work, None if all does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it ended at once"
        try:
            os.close(reader)
            _on_own_gpu()
            (check or _check)()
            said = ""
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            said = f"{frames[-1].name}: {type(error).__name__}: {str(error).strip() or frames[-1].line}"
        finally:
            os.write(writer, b"!" + said.split("\n")[0][:1000].encode())
            os._exit(0)
    os.close(writer)
    answer = _read(reader, child)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if answer.startswith(b"!"):
        return answer[1:].decode(errors="replace") or None
    if os.WIFSIGNALED(status):
        return f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return "it ended without an answer"


def _read(reader: int, child: int) -> bytes:
    end, found = time.monotonic() + _PATIENCE, b""
    while (left := end - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            continue
        part = os.read(reader, 4096)
        if not part:
            return found
        found += part
    os.kill(child, signal.SIGKILL)
    return f"!it did not end within {_PATIENCE} s".encode()


def _on_own_gpu() -> None:
    """Leave the run's GPU and its other processes alone: the same one, that no process shares."""
    with open(os.environ[_protocol.VIRTUAL_GPU]) as file:
        lines = [line for line in file if not line.startswith(("card.", "board."))]
    with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
        file.writelines(lines)
    os.environ[_protocol.VIRTUAL_GPU] = file.name
    try:
        torch.cuda.init()
        torch.empty(1, device="cuda")
    finally:
        os.remove(file.name)


def _check() -> None:
    """Raise where something is not as the recorder, the value layer and the levers need it."""
    absent = [name for name in torch_features.NEEDED if torch_features.look_up(name) is None]
    if absent:
        raise AttributeError(f"torch lacks {', '.join(absent)}")
    # They want those names when they are imported.
    from oomph._virtual_gpu.assumptions import Assumptions
    from oomph._virtual_gpu.values import ValueLayer

    layer = ValueLayer(Assumptions())
    scopes: list[str] = []
    layer.before = scopes.append
    layer.install()
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=1000
    )
    before = torch.cuda.memory_allocated()
    kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    grown = torch.cuda.memory_allocated() - before
    if grown != 3 << 20:
        raise ValueError(f"3 MiB were counted as {grown} bytes")
    counted = torch.arange(100, device="cuda") % 3 == 0
    if counted.sum().item() != 34 or counted.nonzero().shape != (34, 1):
        raise ValueError("small tensors do not have their values")
    image = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    )
    model = torch.nn.Sequential(image, torch.nn.Linear(8 * 30 * 30, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 3, 32, 32, device="cuda")).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    missed = {"aten::convolution", "aten::addmm", "aten::convolution_backward"} - set(scopes)
    if missed:
        raise ValueError(f"operators were not seen: {', '.join(sorted(missed))}")
    events = [event for trace in torch.cuda.memory._snapshot()["device_traces"] for event in trace]
    sizes = [
        event["size"]
        for event in events
        if event["action"] == "alloc" and event["addr"] == kept.data_ptr()
    ]
    if sizes != [3 << 20]:
        raise ValueError("the memory history does not have an allocation")
    try:
        torch.empty(1 << 50, device="cuda")
    except torch.OutOfMemoryError as error:
        if "Tried to allocate" not in str(error):
            raise ValueError("errors of the allocator have other words") from None
