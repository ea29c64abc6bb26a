"""What levers save outside of the allocator on a real GPU, and whether results stay: `python threads_and_streams.py OUT.jsonl`.

Trains a small model for 12 steps in a process for each plan. A line of JSON for each: the last loss and a digest of all weights (bitwise),
the median time of a step in ms, and MiB: used on the GPU, most reserved, and outside of the allocator at the end.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COPIES = (
    '[[lever]]\nname = "save_on_cpu"\nin_flight = 16777216\n[[lever]]\nname = "optimizer_on_cpu"\n'
)
SINGLE = '[[lever]]\nname = "single_threaded_backward"\n'
PLANS = {"plain": "", "single": SINGLE, "copies": COPIES, "both": COPIES + SINGLE, "again": ""}


def train(what: str) -> dict:
    """One process's part."""
    if PLANS[what]:
        import oomph

        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('format = "oomph.plan/1"\n' + PLANS[what])
            file.flush()
            oomph.apply(file.name)
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 64, 3, 2, 1)
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.LayerNorm(2048), nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)
                )
                for _ in range(6)
            )
            self.head = nn.Linear(2048, 10)

        def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
            x = x + self.conv(image).mean()
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator("cuda").manual_seed(1)
    times = []
    for _ in range(12):
        x = torch.randn(4096, 2048, device="cuda", generator=generator)
        image = torch.randn(8, 3, 64, 64, device="cuda", generator=generator)
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = model(x, image).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    free, total = torch.cuda.mem_get_info()
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return dict(
        plan=what,
        loss=loss.item().hex(),
        weights=hashlib.sha256(weights).hexdigest()[:12],
        step_ms=round(sorted(times[4:])[4], 2),
        used_mib=(total - free) >> 20,
        reserved_mib=torch.cuda.max_memory_reserved() >> 20,
        outside_mib=(total - free - torch.cuda.memory_reserved()) >> 20,
    )


def main() -> None:
    """All plans, each in a process."""
    if sys.argv[1] == "--train":
        print(json.dumps(train(sys.argv[2])))
        return
    with Path(sys.argv[1]).open("w") as out:
        for what in PLANS:
            command = [sys.executable, __file__, "--train", what]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            out.write(done.stdout.splitlines()[-1] + "\n")


if __name__ == "__main__":
    main()
