"""Random numbers of a real GPU: what each operator gives for a seed, as hashes and samples.

    python bench/gpu/random_numbers.py --out bench/gpu/results/h100_random_numbers.json

`bench/values/random_numbers.py` compares what `oomph run --compute` gives.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import platform
import sys
from datetime import datetime, timezone

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SEED = 20261124
# A full grid of an H200 or H100 has 132 * 8 * 256 threads, which take four numbers at a time.
SIZES = [1, 7, 100, 1_023, 65_536, 1_081_345, 2_500_000]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def cases():
    """Names, and functions that make a tensor on the GPU."""
    for n in SIZES:
        for kind in FLOATS:
            name = f"{n} {str(kind).removeprefix('torch.')}"
            yield f"rand {name}", lambda n=n, k=kind: torch.rand(n, device="cuda", dtype=k)
            yield f"randn {name}", lambda n=n, k=kind: torch.randn(n, device="cuda", dtype=k)
            yield (
                f"dropout {name}",
                lambda n=n, k=kind: F.dropout(torch.ones(n, device="cuda", dtype=k), 0.3),
            )
            yield (
                f"bernoulli_ {name}",
                lambda n=n, k=kind: torch.empty(n, device="cuda", dtype=k).bernoulli_(0.3),
            )
        for kind in (torch.int64, torch.int32, torch.uint8):
            name = f"{n} {str(kind).removeprefix('torch.')}"
            yield (
                f"randint 100 {name}",
                lambda n=n, k=kind: torch.randint(100, (n,), device="cuda", dtype=k),
            )
        yield f"randint 2^29 {n}", lambda n=n: torch.randint(2**29, (n,), device="cuda")
        yield f"randint 2^40 {n}", lambda n=n: torch.randint(-5, 2**40, (n,), device="cuda")
        yield f"random_ {n}", lambda n=n: torch.empty(n, device="cuda", dtype=torch.int64).random_()
        yield (
            f"random_ int32 {n}",
            lambda n=n: torch.empty(n, device="cuda", dtype=torch.int32).random_(),
        )
        yield f"random_ float32 {n}", lambda n=n: torch.empty(n, device="cuda").random_()
        yield f"uniform_ -2 3 {n}", lambda n=n: torch.empty(n, device="cuda").uniform_(-2, 3)
        yield f"normal_ 1 2 {n}", lambda n=n: torch.empty(n, device="cuda").normal_(1, 2)
        yield f"exponential_ {n}", lambda n=n: torch.empty(n, device="cuda").exponential_(2)
        yield f"cauchy_ {n}", lambda n=n: torch.empty(n, device="cuda").cauchy_()
        yield f"log_normal_ {n}", lambda n=n: torch.empty(n, device="cuda").log_normal_()
        yield f"geometric_ {n}", lambda n=n: torch.empty(n, device="cuda").geometric_(0.2)
        yield (
            f"bernoulli tensor {n}",
            lambda n=n: torch.bernoulli(torch.full((n,), 0.3, device="cuda")),
        )
        yield f"randperm {n}", lambda n=n: torch.randperm(n, device="cuda")
        yield f"poisson {n}", lambda n=n: torch.poisson(torch.full((n,), 3.0, device="cuda"))
        yield f"rrelu {n}", lambda n=n: F.rrelu(-torch.ones(n, device="cuda"), training=True)
    yield (
        "bool bernoulli_",
        lambda: torch.empty(1000, device="cuda", dtype=torch.bool).bernoulli_(0.5),
    )
    yield "multinomial 1", lambda: torch.multinomial(torch.ones(5, 11, device="cuda"), 1)
    yield "multinomial many", lambda: torch.multinomial(torch.ones(3, 1000, device="cuda"), 20)
    yield (
        "multinomial again",
        lambda: torch.multinomial(torch.ones(3, 10, device="cuda"), 20, replacement=True),
    )
    yield "transposed uniform_", lambda: torch.empty(300, 200, device="cuda").t().uniform_()
    yield "strided uniform_", lambda: torch.empty(300, 200, device="cuda")[:, ::2].uniform_()
    yield (
        "channels_last normal_",
        lambda: (
            torch.empty(4, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last).normal_()
        ),
    )
    yield "dropout odd rows", lambda: F.dropout(torch.ones(33, 101, device="cuda"), 0.1)
    yield "dropout strided", lambda: F.dropout(torch.ones(64, 128, device="cuda").t(), 0.1)
    yield "dropout sliced", lambda: F.dropout(torch.ones(64, 128, device="cuda")[:, 1:], 0.1)
    yield (
        "dropout bf16 8",
        lambda: F.dropout(torch.ones(64, 136, device="cuda", dtype=torch.bfloat16), 0.1),
    )
    yield "dropout1d", lambda: F.dropout1d(torch.ones(8, 16, 10, device="cuda"), 0.4)
    yield "dropout2d", lambda: F.dropout2d(torch.ones(8, 16, 10, 10, device="cuda"), 0.4)
    yield (
        "alpha_dropout",
        lambda: F.alpha_dropout(torch.ones(1000, device="cuda"), 0.4, training=True),
    )
    yield (
        "dropout twice",
        lambda: torch.stack([F.dropout(torch.ones(5000, device="cuda"), 0.5) for _ in range(2)]),
    )
    yield (
        "trunc_normal_",
        lambda: torch.nn.init.trunc_normal_(torch.empty(5000, device="cuda"), std=0.02),
    )
    yield (
        "kaiming_uniform_",
        lambda: torch.nn.init.kaiming_uniform_(torch.empty(64, 77, device="cuda")),
    )
    yield "xavier_normal_", lambda: torch.nn.init.xavier_normal_(torch.empty(64, 77, device="cuda"))
    yield "rand 3d", lambda: torch.rand(7, 11, 13, device="cuda")
    yield "rand_like slice", lambda: torch.rand_like(torch.empty(50, 60, device="cuda")[:, 3:40])
    yield "gumbel_softmax", lambda: F.gumbel_softmax(torch.zeros(40, 10, device="cuda"))
    yield (
        "generator",
        lambda: torch.rand(1000, device="cuda", generator=torch.Generator("cuda").manual_seed(7)),
    )
    yield (
        "complex randn",
        lambda: torch.view_as_real(torch.randn(1000, device="cuda", dtype=torch.complex64)),
    )


def attention_cases():
    """Which probabilities fused attention drops, forward and backward. Values are a unit matrix, so that all can be seen."""
    flash, efficient = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    for backend, kind, shape, causal, p in (
        (efficient, torch.float32, (2, 3, 64, 64), False, 0.3),
        (efficient, torch.float32, (1, 2, 100, 100), False, 0.1),
        (efficient, torch.float32, (2, 2, 72, 128), True, 0.5),
        (efficient, torch.bfloat16, (2, 2, 128, 64), False, 0.2),
        (flash, torch.float16, (2, 3, 64, 64), False, 0.3),
        (flash, torch.bfloat16, (1, 2, 200, 104), False, 0.1),
        (flash, torch.bfloat16, (2, 2, 128, 128), True, 0.5),
        (flash, torch.float16, (3, 4, 77, 64), False, 0.25),
        (flash, torch.float16, (1, 2, 160, 192), False, 0.2),
    ):
        said = (
            f"{backend.name.split('_')[0].lower()} {str(kind).removeprefix('torch.')} {shape} {p}"
        )

        def attend(kind=kind, shape=shape, causal=causal, p=p, backend=backend):
            samples, heads, queries, keys = shape
            steps = torch.arange(samples * heads * max(queries, keys) * keys, device="cuda")
            q = (steps[: samples * heads * queries * keys] % 7 / 70).view(shape).to(kind)
            k = (steps[: samples * heads * keys * keys] % 5 / 50).to(kind)
            k = k.view(samples, heads, keys, keys)
            v = torch.eye(keys, device="cuda", dtype=kind).expand(samples, heads, -1, -1)
            v = v.contiguous().requires_grad_()
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
            return out, v

        yield f"attention {said}", lambda attend=attend: attend()[0] != 0

        def backward(attend=attend):
            out, v = attend()
            out.backward(torch.ones_like(out))
            # The sum over queries of what is left of each key.
            return (v.grad * 64).round()

        yield f"attention backward {said}", backward


def sample(t: torch.Tensor) -> list[float]:
    """Sixteen numbers, spread over the tensor."""
    flat = t.detach().cpu().double().reshape(-1)
    return flat[torch.linspace(0, flat.numel() - 1, 16).long()].tolist()


def bits(t: torch.Tensor) -> bytes:
    """The bytes of a tensor in the order of its elements."""
    return t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def measured() -> dict:
    """Each case with its seed set anew: a hash, a sample, where the generator stands after, and the mean."""
    found = {}
    for name, make in itertools.chain(cases(), attention_cases()):
        torch.cuda.manual_seed(SEED)
        try:
            t = make()
            t = t.reshape(1) if t.dim() == 0 else t
            found[name] = {
                "sha256": hashlib.sha256(bits(t)).hexdigest(),
                "offset": torch.cuda.default_generators[0].get_offset(),
                "mean": t.double().mean().item(),
                "sample": sample(t),
                "first": t.detach().cpu().double().reshape(-1)[:32].tolist(),
            }
        except (RuntimeError, NotImplementedError, ValueError) as e:
            found[name] = {"error": str(e).splitlines()[0][:200]}
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    properties = torch.cuda.get_device_properties(0)
    about = {
        "machine": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "threads_per_multiprocessor": properties.max_threads_per_multi_processor,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "bench/gpu/random_numbers.py", *sys.argv[1:]]),
        "seed": SEED,
    }
    with open(out, "w") as file:
        json.dump({"about": about, "cases": measured()}, file, indent=1)


if __name__ == "__main__":
    main()
