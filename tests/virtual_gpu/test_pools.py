"""`backend:cudaMallocAsync`: PyTorch allocates from the driver's pools, and keeps no history of its own."""

ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
MIB = 1 << 20


def test_a_job_is_recorded(oomph):
    """Sizes as an H200 gave them (`bench/gpu/results/malloc_async.jsonl`): units of 32 MiB, bytes as asked for."""
    run = oomph("""
        import torch
        MIB = 1 << 20
        def held():
            return torch.cuda.memory_reserved() // MIB, torch.cuda.memory_allocated()
        a, b, c, d = (torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in "abcd")
        print("four", *held())
        del b, c
        larger = torch.empty(201 * MIB, dtype=torch.uint8, device="cuda")
        print("larger", *held())
        del a, d, larger
        torch.cuda.synchronize()
        print("freed", *held())
        torch.cuda.empty_cache()
        print("emptied", *held())
        tiny = torch.empty(1, dtype=torch.uint8, device="cuda")
        print("tiny", *held())
    """, env=ASYNC)  # fmt: skip
    assert run.status == 0, run.err
    said = [line for line in run.out.splitlines() if line]
    assert said[:5] == [
        f"four 416 {400 * MIB}",
        f"larger 448 {401 * MIB}",
        "freed 448 0",
        "emptied 0 0",
        "tiny 32 1",
    ]
    assert run.json["peak"]["allocated_bytes"] == 401 * MIB
    assert run.json["peak"]["reserved_bytes"] == 448 * MIB
    assert "cudaMallocAsync" in str(run.json["assumptions"])


def test_out_of_memory(oomph):
    run = oomph("""
        import torch
        layer = torch.nn.Linear(8, 8).cuda()
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(100)]
    """, "--no-measure", env=ASYNC)  # fmt: skip
    assert run.status == 3 and run.json["verdict"] == "out_of_memory", run.err
    assert "Allocation on device 0 would exceed allowed memory" in run.err
