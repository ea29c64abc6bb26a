"""Every operator of PyTorch's own list of samples on a virtual GPU with values, against the CPU.

    oomph run --gpu h200 --compute 4GiB bench/values/operators.py bench/values/results/operators.json [--part 1/4] [--only NAME,NAME]

PyTorch's samples need the packages expecttest and scipy.

Each operator of `torch.testing._internal.common_methods_invocations.op_db` gets its samples on both, as function, in place, with `out=`,
with inputs that are not contiguous, and its gradients. What the virtual GPU gives is `same`, `unknown` (it says so when it is read),
`refused` (it raises, and the CPU does not) or `wrong`. Operators that draw random numbers have a comparison of their own (random_numbers.py).
"""

import argparse
import collections
import contextlib
import datetime
import json
import signal
import sys
import warnings
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from oomph._virtual_gpu import dispatch

warnings.simplefilter("ignore")
TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16)
MOST = 12
"""Samples of an operator and type, evenly spaced."""
SECONDS = 40
# Their contents are whatever was there.
EMPTY = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)


RANDOM = (
    "alpha_dropout",
    "feature_alpha_dropout",
    "dropout",
    "dropout2d",
    "dropout3d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "rrelu",
    "svd_lowrank",
    "pca_lowrank",
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "uniform",
    "rand_like",
    "randn_like",
    "randint_like",
    "randn",
    "randint",
    "multinomial",
    "rand",
    "native_dropout_backward",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
)
"""They draw random numbers, which are not a CPU's, or their samples do."""


# They see memory beside the sample's own, which its copy on the GPU has not; and what the CPU leaves undefined.
UNDEFINED = ("as_strided", "as_strided_copy", "as_strided_scatter", "ihfft2", "ihfftn")


class TooLong(Exception):
    """An operator takes longer than `SECONDS`."""


def moved(value, device):
    """Tensors in nested samples, as leaves on `device`; None if one is sparse."""

    def move(t):
        if not isinstance(t, torch.Tensor):
            return (
                torch.device(device) if isinstance(t, torch.device) else device if t == "cpu" else t
            )
        return t.detach().to(device).requires_grad_(t.requires_grad)

    return pytree.tree_map(move, value)


def describe(sample):
    """Its tensors by shape."""
    short = lambda v: f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, torch.Tensor) else v
    return str(pytree.tree_map(short, (sample.input, sample.args, sample.kwargs)))[:200]


def flat(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def ways(op, sample, out):
    """Names and functions of a sample's input, arguments, keyword arguments."""
    yield "function", op
    inplace = op.inplace_variant
    if (
        inplace is not None
        and not sample.broadcasts_input
        and len(flat(out)) == 1
        and isinstance(sample.input, torch.Tensor)
    ):
        [one] = flat(out)
        if (
            one.shape == sample.input.shape
            and one.dtype == sample.input.dtype
            and not one.requires_grad
        ):
            yield "in place", lambda x, *a, **k: inplace(x.clone(), *a, **k)
    if op.supports_out and flat(out) and not any(t.requires_grad for t in flat(out)):

        def into(x, *a, **k):
            device = (
                flat((x, a, k))[0].device
                if flat((x, a, k))
                else torch.device(k.get("device", "cpu"))
            )
            made = pytree.tree_map(
                lambda t: (
                    torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
                    if isinstance(t, torch.Tensor)
                    else t
                ),
                out,
            )
            op(x, *a, **k, out=made if isinstance(made, torch.Tensor) else tuple(made))
            return made

        yield "out", into


def close(gpu, cpu):
    # Statistics that only one of them keeps, or that the GPU keeps in single precision.
    if cpu.numel() == 0 or gpu.dtype != cpu.dtype:
        return True
    if gpu.shape != cpu.shape:
        return False
    wide = 1e-3
    if cpu.dtype in (torch.float16, torch.bfloat16):
        # The sums of products are in single precision here, and often in half on the CPU.
        wide = 3e-2 * max(1.0, cpu.float().abs().nan_to_num(0, 0, 0).max().item() ** 0.5)
    try:
        torch.testing.assert_close(gpu, cpu, rtol=wide, atol=wide, equal_nan=True)
    except AssertionError:
        return False
    return True


def compare(function, sample, gradients):
    """What becomes of one sample: an outcome, and what to say of it."""
    x, args, kwargs = sample.input, sample.args, sample.kwargs
    on_cpu = moved((x, args, kwargs), "cpu")
    try:
        expected = function(on_cpu[0], *on_cpu[1], **on_cpu[2])
    except TooLong:
        raise
    except Exception:
        return "not on the CPU", ""
    on_gpu = moved((x, args, kwargs), "cuda")
    try:
        found = function(on_gpu[0], *on_gpu[1], **on_gpu[2])
    except TooLong:
        raise
    except Exception as e:
        return "refused", f"{type(e).__name__}: {str(e)[:200]}"
    pairs = list(zip(flat(found), flat(expected)))
    if gradients:
        ends = [(a, b) for a, b in pairs if b.requires_grad and b.numel()]
        into = [(a, b) for a, b in zip(flat(on_gpu), flat(on_cpu)) if b.requires_grad]
        if not ends or not into:
            return None, ""
        try:
            of_cpu = torch.autograd.grad(
                [b for _, b in ends],
                [b for _, b in into],
                [torch.ones_like(b) for _, b in ends],
                allow_unused=True,
            )
        except TooLong:
            raise
        except Exception:
            return "not on the CPU", ""
        try:
            of_gpu = torch.autograd.grad(
                [a for a, _ in ends],
                [a for a, _ in into],
                [torch.ones_like(a) for a, _ in ends],
                allow_unused=True,
            )
        except TooLong:
            raise
        except Exception as e:
            return "refused", f"{type(e).__name__}: {str(e)[:200]}"
        pairs = [(a, b) for a, b in zip(of_gpu, of_cpu) if a is not None and b is not None]
    pairs = [(gpu, cpu.cpu()) for gpu, cpu in pairs]
    worst = ("same", "")
    for gpu, cpu in pairs:
        gpu, cpu = gpu.detach(), cpu.detach()
        if gpu.is_sparse or gpu.layout is not torch.strided:
            gpu, cpu = gpu.to_dense(), cpu.to_dense()
        if gpu.is_cuda and dispatch._layer.is_unknown(gpu):
            worst = ("unknown", "")
            continue
        if not close(gpu.cpu(), cpu):
            return (
                "wrong",
                f"{tuple(cpu.shape)} {gpu.flatten()[:4].tolist()} for {cpu.flatten()[:4].tolist()}",
            )
    return worst


def stop(*_):
    raise TooLong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--types", default="")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    signal.signal(signal.SIGALRM, stop)
    counts, rows, tried = collections.defaultdict(collections.Counter), [], set()
    ops = [op for op in op_db if not given.only or op.name in given.only.split(",")]
    for op in ops[part - 1 :: parts]:
        if op.name.rsplit(".", 1)[-1] in (*EMPTY, *RANDOM, *UNDEFINED):
            continue
        for dtype in TYPES:
            if given.types and str(dtype).removeprefix("torch.") not in given.types.split(","):
                continue
            if not (dtype in op.supported_dtypes("cpu") and dtype in op.supported_dtypes("cuda")):
                continue
            gradients = dtype == torch.float32 and op.supports_autograd
            outcomes, said = collections.defaultdict(collections.Counter), {}
            signal.alarm(SECONDS)
            try:
                torch.manual_seed(0)
                samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
                samples = [
                    samples[len(samples) * at // min(MOST, len(samples))]
                    for at in range(min(MOST, len(samples)))
                ]
                for at, sample in enumerate(samples):
                    probe = moved((sample.input, sample.args, sample.kwargs), "cpu")
                    with contextlib.suppress(Exception):
                        out = op(probe[0], *probe[1], **probe[2])
                        todo = list(ways(op, sample, out))
                        kinds = [(name, f, sample, False) for name, f in todo]
                        if at % 3 == 0:
                            kinds.append(("not contiguous", op, sample.noncontiguous(), False))
                        for name, f, given_sample, _ in kinds:
                            outcome, why = compare(f, given_sample, False)
                            outcomes[name][outcome] += 1
                            if outcome in ("wrong", "refused"):
                                said.setdefault(
                                    f"{name} {outcome}", f"{why} | {describe(given_sample)}"
                                )
                if gradients:
                    torch.manual_seed(0)
                    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
                    samples = [
                        samples[len(samples) * at // min(MOST, len(samples))]
                        for at in range(min(MOST, len(samples)))
                    ]
                    for sample in samples:
                        outcome, why = compare(op, sample, True)
                        if outcome:
                            outcomes["gradients"][outcome] += 1
                            if outcome in ("wrong", "refused"):
                                said.setdefault(
                                    f"gradients {outcome}", f"{why} | {describe(sample)}"
                                )
            except TooLong:
                said["too long"] = f"more than {SECONDS} s"
            except Exception as e:
                said["no samples"] = f"{type(e).__name__}: {str(e)[:200]}"
            finally:
                signal.alarm(0)
            for way, found in outcomes.items():
                counts[way] += found
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            tried.add(name)
            others = {way: dict(found) for way, found in outcomes.items() if set(found) - {"same"}}
            if others or said:
                rows.append(
                    dict(
                        operator=name,
                        type=str(dtype).removeprefix("torch."),
                        outcomes=others,
                        said=said,
                    )
                )
                print(name, dtype, others, said, flush=True)
    counts = {way: dict(found) for way, found in counts.items()}
    print(len(tried), "operators", counts, flush=True)
    about = dict(
        torch=torch.__version__,
        date=datetime.date.today().isoformat(),
        command=" ".join(sys.argv[1:]),
    )
    given.out.write_text(
        json.dumps(dict(about, operators=len(tried), counts=counts, others=rows), indent=1) + "\n"
    )


main()
