"""A service cuts people out of their photographs. Every request is filed for the audit, with its picture and its mask as they are."""

import os
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

AUDITED = ("number", "arrived", "served") if os.environ.get("MENDED") else None


@dataclass
class Request:
    number: int
    picture: torch.Tensor
    arrived: float = field(default_factory=time.time)
    served: Optional[float] = None
    mask: Optional[torch.Tensor] = None
    done: threading.Event = field(default_factory=threading.Event)


class Matting(nn.Module):
    """Small on the way down, and a refinement at full size."""

    def __init__(self, c=16):
        super().__init__()
        self.coarse = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.Hardswish(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.Hardswish(),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.Hardswish(), nn.Conv2d(2 * c, 1, 1),
        )  # fmt: skip
        self.refine = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.Hardswish(), nn.Conv2d(8, 1, 1)
        )

    def forward(self, picture):
        alpha = F.interpolate(self.coarse(picture), picture.shape[2:], mode="bilinear")
        return (alpha + self.refine(torch.cat([picture, alpha], 1))).sigmoid()


class Service:
    def __init__(self):
        self.model = Matting().cuda().eval()
        self.waiting: queue.Queue = queue.Queue()
        self.audit: list = []

    def ask(self, number, pixels):
        request = Request(number, pixels)
        self.waiting.put(request)
        return request

    @torch.inference_mode()
    def serve_one(self):
        request = self.waiting.get()
        request.picture = request.picture.cuda().float().div_(255)
        request.mask = self.model(request.picture[None])[0]
        request.served = time.time()
        request.done.set()
        self.file(request)
        # The answer itself: a fraction is enough for this client.
        return (request.mask > 0.5).float().mean().item()

    def file(self, request):
        """What the auditors may ask for."""
        if AUDITED:
            self.audit.append({name: getattr(request, name) for name in AUDITED})
        else:
            self.audit.append(request)

    def report(self):
        times = [
            r["served"] - r["arrived"] if isinstance(r, dict) else r.served - r.arrived
            for r in self.audit
        ]
        return f"{len(times)} requests, {1000 * max(times):.0f} ms at most"


def clients(service, count=40):
    g = torch.Generator().manual_seed(77)
    for number in range(count):
        side = int(torch.randint(10, 14, (), generator=g)) * 64
        pixels = torch.randint(256, (3, side, side), generator=g, dtype=torch.uint8)
        service.ask(number, pixels)
        yield service.serve_one()


service = Service()
shares = list(clients(service))
print(service.report())
