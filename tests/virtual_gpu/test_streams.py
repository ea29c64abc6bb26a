"""How far the GPU is behind the host: what `record_stream` marked comes back when the other stream has passed."""

import pytest

CODE = """
    import torch
    host = torch.zeros(64 << 20, dtype=torch.uint8, pin_memory=True)
    weight = torch.randn(8192, 8192, device="cuda")
    copy, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    def load():
        with torch.cuda.stream(copy):
            return host.to("cuda", non_blocking=True)
    after = load()
    for _ in range(8):
        compute.wait_stream(copy)
        now, _ = after, after.record_stream(compute)
        after = load()
        out = weight @ weight
        del now
        {wait}
    print("reserved", torch.cuda.memory_reserved() >> 20)
"""


def reserved(run):
    assert run.status == 0, run.err
    return int(run.out.split("reserved")[1].split()[0])


def test_a_host_that_never_waits_needs_new_memory(oomph):
    """As in `bench/gpu/results/late_streams.jsonl`: two batches where it waits, one more for each step where not."""
    patient = oomph(CODE.format(wait="out.sum().item()"), gpu="h200")
    hasty = oomph(CODE.format(wait="pass"), gpu="h200")
    assert reserved(hasty) >= reserved(patient) + 4 * 64
    assert "is estimated" in str(hasty.json["assumptions"])


def test_an_event_that_is_polled_passes(oomph):
    run = oomph("""
        import torch
        x = torch.randn(8192, 8192, device="cuda")
        for _ in range(50):
            y = x @ x
        event = torch.cuda.Event()
        event.record()
        assert not event.query()
        while not event.query():
            pass
        print("passed")
    """, gpu="h200")  # fmt: skip
    assert "passed" in run.out, run.err


SEVERAL = """
    import os, random, time
    import torch, torch.distributed as dist
    from torch import nn
    def pause(*_):
        time.sleep(random.random() * {delay})
    dist.init_process_group("nccl", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(pause)
    side = torch.cuda.Stream()
    data = [torch.randn(1024, 1024) for _ in range(24)]
    {make}
    optimizer = torch.optim.AdamW(net.parameters())
    for x in data:
        pause()
        net(x.to("cuda", non_blocking=True)).square().mean().backward()
        pause()
        {each}
        optimizer.step(), optimizer.zero_grad()
    print("peaks", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    dist.destroy_process_group()
"""

DDP = "net = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)"

JOBS = {
    # Compressed gradients come back when PyTorch's watchdog of collectives has looked.
    "hook": (
        f"""{DDP}
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    net.register_comm_hook(None, fp16_compress_hook)""",
        "",
    ),
    # Two threads and the copies of a loader, beside new buckets after the first step.
    "loader": (
        f"""{DDP}
    data = torch.utils.data.DataLoader(data, batch_size=None, pin_memory=True)""",
        "",
    ),
    # Collectives that nobody waits for, and memory that another stream uses.
    "streams": (
        "net = model",
        """for p in net.parameters():
            part = p.grad * 2
            dist.all_reduce(part, async_op=True)
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.default_stream())
                part.record_stream(side)
                (part @ part if part.dim() == 2 else part * 3).sum()
            pause()""",
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_how_long_the_host_takes_changes_nothing(oomph, job):
    make, each = JOBS[job]
    runs = [
        oomph(SEVERAL.format(delay=delay, make=make, each=each), gpu="h200") for delay in (0, 0.05)
    ]
    quick, slow = (run.out.split("peaks")[1].split("\n")[0] for run in runs)
    assert quick == slow
    assert runs[0].json["peak"] == runs[1].json["peak"]
