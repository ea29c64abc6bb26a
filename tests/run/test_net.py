"""`oomph run --net`: when GPU memory runs out, the job goes on in host memory."""

JOBS = """
    import ctypes
    import torch
    import torch.nn.functional as F
    from torch import nn

    MIB = 1 << 20
    gpu = ctypes.PyDLL(None)
    gpu.oomph_vgpu_requests.restype = ctypes.c_uint64
    gpu.oomph_vgpu_fail.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]

    def train(model, loss_of, steps=3):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()

    def mlp():
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda()
        x = torch.randn(512, 1024, device="cuda")
        train(model, lambda: model(x).square().mean())

    def encoder():
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True), 2).cuda()
        x = torch.randn(16, 128, 256, device="cuda")
        train(model, lambda: model(x).mean())

    def images():
        model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
        x, y = torch.randn(16, 3, 96, 96, device="cuda"), torch.randint(10, (16,), device="cuda")
        train(model, lambda: F.cross_entropy(model(x), y))

    def requests(job):
        torch.cuda.empty_cache()
        before = gpu.oomph_vgpu_requests(0)
        job()
        return gpu.oomph_vgpu_requests(0) - before
"""


def test_each_allocation_of_three_jobs_may_fail(oomph):
    """From the first, the second, … on all requests for device memory fail: the jobs survive each time."""
    run = oomph(JOBS + """
    for job in mlp, encoder, images:
        job()
        for first in range(1, requests(job) + 1):
            torch.cuda.empty_cache()
            gpu.oomph_vgpu_fail(0, first, 10**9)
            # What reaches host memory keeps its contents.
            job()
            kept = torch.arange(8 * MIB // 8, device="cuda")
            assert kept[-3:].tolist() == [MIB - 3, MIB - 2, MIB - 1]
            del kept
            gpu.oomph_vgpu_fail(0, 0, 0)
        print(job.__name__, first, "survived")
    """, "--net")  # fmt: skip
    assert run.status == 0, run.err
    survived = [line.split() for line in run.out.splitlines() if line.endswith("survived")]
    assert [name for name, *_ in survived] == ["mlp", "encoder", "images"]
    assert all(int(count) >= 3 for _, count, _ in survived)
    said = [line for line in run.err.splitlines() if line.startswith("oomph: net:")]
    assert len(said) == 2
    assert "GPU memory ran out, and the job goes on" in said[0]
    assert "lay in host memory" in said[1]


STEPS = """
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    x = torch.randn(64, 256, device="cuda")

    def step(frees_first):
        if frees_first:
            optimizer.zero_grad()
            begins = torch.cuda.memory_allocated()
        loss = model(x).square().mean()
        if not frees_first:
            optimizer.zero_grad()
            begins = torch.cuda.memory_allocated()
        # What takes the places of gradients that were freed.
        others = [torch.empty_like(parameter) for parameter in parameters]
        loss.backward()
        optimizer.step()
        return begins, [parameter.grad.data_ptr() for parameter in parameters]
"""


def test_gradients_stay_where_they_lie(oomph):
    """Those that live through the forward pass, so that tensors lie where they lay a step before."""
    run = oomph(STEPS + """
    places = [step(frees_first=False)[1] for _ in range(6)]
    assert places[1] == places[2] == places[5], places
    # A gradient that somebody holds, by itself, in part or as another's, keeps its values.
    for held in lambda: parameters[0].grad, lambda: parameters[0].grad[3:], lambda: parameters[0].grad.detach():
        held, before = held(), parameters[0].grad.clone()
        values = held.clone()
        step(frees_first=False)
        assert torch.equal(held, values)
        assert not torch.equal(parameters[0].grad, before)
        del held
    print("stayed")
    """, "--net", env={"OOMPH_NET": f"device={4 << 20}"})  # fmt: skip
    assert "stayed" in run.out, run.err


def test_parameters_that_are_frozen_after_their_step(oomph):
    """A critic, while its generator learns from it."""
    run = oomph(STEPS + """
    for number in range(4):
        step(frees_first=False)
        model.requires_grad_(False)
        given = x.clone().requires_grad_()
        model(given).sum().backward()
        model.requires_grad_(True)
    print("went on", given.grad is not None)
    """, "--net", env={"OOMPH_NET": f"device={4 << 20}"})  # fmt: skip
    assert "went on True" in run.out, run.err


def test_whoever_holds_a_gradient_sees_what_he_would_without_it(oomph):
    """Schedules at random, of two parameters alike: gradients are freed or added to, and held in several ways."""
    run = oomph("""
    import random
    import torch
    from oomph._steady_gradients import _Place

    def as_anothers(parameter):
        other = torch.nn.Parameter(torch.zeros_like(parameter))
        other.grad = parameter.grad
        return other

    def seen(held):
        if isinstance(held, torch.nn.Parameter):
            return held.grad
        return held if torch.is_tensor(held) else torch.empty(0, device="cuda").set_(held)

    holds = (
        lambda p: p.grad, lambda p: p.grad[1:], lambda p: p.grad.detach(),
        lambda p: p.grad.view(-1).untyped_storage(), as_anothers,
    )
    kept = 0
    for seed in range(40):
        choose = random.Random(seed)
        plain, steady = (torch.nn.Parameter(torch.ones(3, 4, device="cuda")) for _ in range(2))
        held, place = [], None
        for step in range(10):
            factor, freed = choose.random(), choose.random() < 0.8
            for parameter in plain, steady:
                if freed:
                    parameter.grad = None
                (parameter * factor).square().sum().backward()
            if step == 0:
                place = _Place(steady.grad)
                steady.register_post_accumulate_grad_hook(place)
            kept += place._kept is steady.grad
            if choose.random() < 0.4:
                hold = choose.choice(holds)
                held.append((hold(plain), hold(steady)))
            elif choose.random() < 0.5:
                held.clear()
            for left, right in [(plain.grad, steady.grad), *held]:
                assert torch.equal(seen(left), seen(right)), (seed, step)
    print("alike", kept)
    """)  # fmt: skip
    assert "alike 400" in run.out, run.err


def test_gradients_that_are_freed_before_the_forward_pass_are_not_kept(oomph):
    run = oomph(STEPS + """
    size = sum(parameter.nbytes for parameter in parameters)
    begins = [step(frees_first=True)[0] for _ in range(5)]
    assert max(begins[1:]) - begins[0] < size / 2, (begins, size)
    print("freed")
    """, "--net", env={"OOMPH_NET": f"device={4 << 20}"})  # fmt: skip
    assert "freed" in run.out, run.err


def test_without_the_net_gradients_are_left_alone(oomph):
    run = oomph(STEPS + """
    places = [step(frees_first=False)[1] for _ in range(4)]
    assert places[1] != places[2]
    print("moved")
    """)  # fmt: skip
    assert "moved" in run.out, run.err


TOO_MUCH = """
    import torch
    MIB = 1 << 20
    kept = [torch.full((100 * MIB,), n, dtype=torch.uint8, device="cuda") for n in range(8)]
    print(torch.cuda.memory_reserved() // MIB, torch.cuda.memory_stats()["num_alloc_retries"])
"""


def test_what_does_not_fit_lies_on_the_host(oomph):
    """PyTorch empties its cache before, and counts that, as without the net. Room is left for what libraries load late (192 MiB)."""
    run = oomph(TOO_MUCH, "--net", "--memory", "700MiB")
    assert run.status == 0, run.err
    assert "800 3" in run.out.splitlines()
    assert "up to 400 MiB lay in host memory" in run.err


def test_without_it_or_without_host_memory_the_error_stands(oomph):
    assert oomph(TOO_MUCH, "--memory", "700MiB", "--no-measure").status == 3
    run = oomph(TOO_MUCH, "--net", "--memory", "700MiB", env={"OOMPH_NET": "host=104857600"})
    assert run.status == 3
    assert (
        "PyTorch's error stands: 100 MiB more are needed, and host memory is used up too" in run.err
    )


def test_a_smaller_gpu_can_be_had_to_measure(oomph):
    run = oomph(TOO_MUCH, "--net", env={"OOMPH_NET": f"device={300 << 20}"})
    assert run.status == 0, run.err
    assert "up to 500 MiB lay in host memory" in run.err


def test_a_job_that_fits_is_as_without_it(oomph):
    plain, net = (oomph(TOO_MUCH, *options) for options in ([], ["--net"]))
    assert plain.status == net.status == 0
    assert "oomph: net:" not in net.err
    assert net.json["peak"] == plain.json["peak"]


def test_settings_that_it_does_not_know_leave_it_off(oomph):
    run = oomph(TOO_MUCH, "--net", "--memory", "700MiB", "--no-measure", env={"OOMPH_NET": "mode=wild"})  # fmt: skip
    assert run.status == 3
    assert 'OOMPH_NET: mode is blind, rhythm or stress, not "wild"; the net is off' in run.err


def test_a_program_without_cuda_is_as_without_it(oomph):
    """Functions are found as before, also by who asks for the next one after itself."""
    run = oomph("""
        import ctypes, os
        assert "liboomph_net.so" in open("/proc/self/maps").read()
        libc = ctypes.CDLL(None)
        assert libc.getpid() == os.getpid()
        libm = ctypes.CDLL("libm.so.6")
        libm.cos.restype = ctypes.c_double
        assert libm.cos(ctypes.c_double(0.0)) == 1.0
        try:
            libm.cuNothing
        except AttributeError as error:
            assert "undefined symbol: cuNothing" in str(error)
        print("as before")
    """, "--net")  # fmt: skip
    assert "as before" in run.out, run.err
    assert "oomph: net:" not in run.err


def test_what_libraries_take_on_a_full_gpu_lies_in_host_memory(oomph):
    """The first product loads cuBLAS's code when the script has filled the GPU: no more is used than there is, and nothing "fits"."""
    run = oomph("""
        import torch

        held = [torch.empty(50 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        x = torch.randn(512, 512, device="cuda")
        print((x @ x).shape)
    """, "--net", "--memory", "700MiB")  # fmt: skip
    assert run.status == 0, run.err
    assert run.json["peak"]["used_bytes"] <= 700 << 20
    assert run.json["net_bytes"] > 400 << 20
    assert "runs, but does not fit" in run.out and "to spare" in run.out
    assert "fits" not in run.out.replace("does not fit", "")
