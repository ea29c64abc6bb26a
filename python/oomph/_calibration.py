"""Times small training steps that wait for the host, for `oomph calibrate`.

The models are so small that the GPU is always the quicker one. They differ in what keeps a host busy: modules, single
operators, views, the backward pass, casts, lists and loops of optimizers, passes without gradients. What single operators take
alone says little: within steps the same ones can take twice as long. The steps must stay as they are: `oomph-clock` has what
they took the host that it is fitted to.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import torch

ROUNDS, STEPS = 4, 4


def models() -> dict[str, Any]:
    """Each model by name: what computes a loss, its optimizer, and the type of mixed precision."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    width = 32

    def ones(*size: int) -> torch.Tensor:
        return torch.ones(size, device="cuda")

    class Block(nn.Module):
        """A block of a transformer."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, _ = x.shape
            q, k, v = self.qkv(self.one(x)).view(b, t, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, width)))
            x = x + self.drop(self.down(self.act(self.up(self.two(x)))))
            return x

    def convolutions(blocks: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(blocks):
            layers += [
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def linears(count: int) -> nn.Sequential:
        return nn.Sequential(
            *[layer for _ in range(count) for layer in (nn.Linear(width, width), nn.ReLU())]
        )

    x = ones(4, width)
    sequence = ones(2, 16, width)
    image = ones(2, 8, 8, 8)
    linear, blocks = linears(24).to("cuda"), nn.Sequential(*[Block() for _ in range(6)]).to("cuda")
    seen, half = convolutions(24).to("cuda"), nn.Sequential(*[Block() for _ in range(6)]).to("cuda")
    scaled, taught = convolutions(16).to("cuda"), linears(4).to("cuda")
    teacher = nn.Sequential(*[Block() for _ in range(8)]).to("cuda")
    weights = [nn.Parameter(ones(width)) for _ in range(20)]
    many = [nn.Parameter(ones(width)) for _ in range(150)]
    looped: list[torch.Tensor] = [nn.Parameter(ones(width)) for _ in range(40)]

    def chain() -> torch.Tensor:
        y: torch.Tensor = x
        for weight in weights:
            y = torch.tanh(y * weight + x).view(2, 2, width).transpose(0, 1).reshape(4, width)
        return y.mean()

    def distilled() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(sequence)
        loss: torch.Tensor = F.mse_loss(taught(sequence), wanted)
        return loss

    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    return {
        "linear": (lambda: linear(x).mean(), sgd(linear.parameters(), 1e-3, 0.9), None),
        "blocks": (lambda: blocks(sequence).mean(), adamw(blocks.parameters(), 1e-4), None),
        "convolutions": (lambda: seen(image).mean(), sgd(seen.parameters(), 1e-3, 0.9), None),
        "cast": (lambda: half(sequence).float().mean(), adamw(half.parameters(), 1e-4, fused=True), torch.bfloat16),
        "scaled": (lambda: scaled(image).float().mean(), sgd(scaled.parameters(), 1e-3, 0.9), torch.float16),
        "operators": (chain, sgd(weights, 1e-3), None),
        "list": (lambda: torch.stack([w.sum() for w in many]).mean(), adamw(many, 1e-4), None),
        "loop": (lambda: torch.stack(looped).mean(), adamw(looped, 1e-4, foreach=False), None),
        "distilled": (distilled, adamw(taught.parameters(), 1e-4), None),
    }  # fmt: skip


def stepper(
    loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, amp: torch.dtype | None
) -> Callable[[], list[float]]:
    """A function that takes a step and returns when its parts ended."""
    import torch
    from torch.amp.grad_scaler import GradScaler

    scaler = GradScaler("cuda", enabled=amp is torch.float16)

    def step() -> list[float]:
        times = [time.perf_counter()]
        with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
            value = loss()
        times.append(time.perf_counter())
        scaler.scale(value).backward()
        times.append(time.perf_counter())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        times.append(time.perf_counter())
        return times

    return step


def prepared() -> dict[str, Callable[[], list[float]]]:
    """Steps of each model, taken twice already."""
    import torch

    ready = {name: stepper(*model) for name, model in models().items()}
    for step in ready.values():
        step()
        step()
    torch.cuda.synchronize()
    return ready


def measured(
    rounds: int = ROUNDS,
    steps: int = STEPS,
    ready: dict[str, Callable[[], list[float]]] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Median seconds of the forward pass, the backward pass and the optimizer of each model, and all single ones' sums."""
    import torch

    found: dict[str, list[list[float]]] = {}
    ready = ready or prepared()
    for _ in range(rounds):
        # In turns: a host that is slower for a moment is so for all of them.
        for name, step in ready.items():
            for _ in range(steps):
                times = step()
                torch.cuda.synchronize()
                found.setdefault(name, []).append(
                    [after - before for before, after in zip(times, times[1:])]
                )
    return {
        name: dict(
            parts=[statistics.median(part) for part in zip(*rows)],
            steps=[sum(row) for row in rows],
        )
        for name, rows in found.items()
    }


def main() -> None:
    """Measure and print JSON: seconds of each model's step."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU here: calibrate on the machine that trains")
    found = {name: sum(model["parts"]) for name, model in measured().items()}
    print(json.dumps(dict(gpu=torch.cuda.get_device_name(0), date=time.strftime("%Y-%m-%d"), steps=found)))  # fmt: skip


if __name__ == "__main__":
    main()
