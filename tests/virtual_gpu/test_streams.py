"""How far the GPU is behind the host: what `record_stream` marked comes back when the other stream has passed."""

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
