"""Experts of a mixture, each with its weights and on its own stream."""
import torch

streams = [torch.cuda.Stream() for _ in range(40)]
up = [torch.randn(128, 512, device="cuda") for _ in streams]
down = [torch.randn(512, 128, device="cuda") for _ in streams]


@torch.no_grad()
def experts(tokens):
    results = []
    for stream, a, b in zip(streams, up, down):
        with torch.cuda.stream(stream):
            results.append((tokens @ a).relu() @ b)
    torch.cuda.synchronize()
    return sum(results)


for _ in range(3):
    experts(torch.randn(1024, 128, device="cuda"))
