"""A machine with a GPU: a virtual one around the whole command."""

import subprocess
from pathlib import Path

from tests.support.command import BIN, OOMPH


def machine_with(gpu, place, text_of=lambda text: text):
    """The environment of a machine with this GPU and its driver; `place` is a directory for files.

    What asks the driver finds it, and the script's run, which knows of no virtual GPU, uses it as a real one.
    """
    (library,) = Path(BIN).parent.glob("lib/python*/site-packages/oomph/_vgpu/libcuda.so.1")
    # The file of settings is that of a run.
    (place / "empty.py").write_text("import torch\n")
    subprocess.run(
        [OOMPH, "run", "-q", "--gpu", gpu, "--out", "machine", "empty.py"], cwd=place, check=True
    )
    lines = (place / "machine" / "virtual-gpu.conf").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("card.", "ranks.", "memory.limit"))]
    conf = place / "machine.conf"
    conf.write_text(text_of("\n".join([*kept, f"memory.limit_bytes={2**63}", ""])))
    return dict(LD_PRELOAD=str(library), OOMPH_VGPU=str(conf))
