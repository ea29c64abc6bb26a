"""Processes that use one GPU in turn: each waits until it is told to go on."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path


def wait(place: str) -> None:
    """In such a process: say that it waits, and return when it is told to go on. `place` is its folder."""
    with open(os.path.join(place, "waits"), "wb", buffering=0) as file:
        file.write(b"w")
    with open(os.path.join(place, "go"), "rb", buffering=0) as file:
        file.read(1)


def used_by_all() -> int:
    """Bytes of the GPU that any process holds."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={gpu}"]  # fmt: skip
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 20


class Process:
    """A process that takes turns, as the one who tells it sees it."""

    def __init__(self, place: str, command: list[str], environment: dict[str, str]) -> None:
        """Start it. It writes to `place`, which has to be there, and is given back with its result."""
        self.place, self.began = Path(place), time.time()
        pipes = [self.place / name for name in ("waits", "go")]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Both ends are open here, so that neither side waits for the other one to open its own.
        self._waits, self._go = (os.open(pipe, os.O_RDWR) for pipe in pipes)
        self._said = (self.place / "said").open("w+")
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._said, stderr=self._said, start_new_session=True
        )
        self.timed_out = False

    def waits(self, seconds: float) -> bool:
        """Whether it comes to wait, in so many seconds. One that does neither that nor end is killed."""
        until = time.time() + seconds
        while time.time() < until:
            ready, _, _ = select.select([self._waits], [], [], 0.02)
            if ready:
                os.read(self._waits, 1)
                return True
            if self._process.poll() is not None:
                return False
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.timed_out = True
        return False

    def go(self) -> None:
        """Tell it to go on."""
        os.write(self._go, b"g")

    def said(self) -> str:
        """What it has printed."""
        self._said.seek(0)
        return self._said.read()

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()
        os.close(self._waits)
        os.close(self._go)
