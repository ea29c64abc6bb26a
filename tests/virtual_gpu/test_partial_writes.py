"""What is known of a tensor after a part of it was written, and after a part of it was read."""

import os

import pytest

from tests.support.command import ROOT

PRELUDE = """
import torch
cuda = torch.device("cuda")
large = torch.randn(1024, 1024, device=cuda)
unknown = large @ large + 1
"""
READ = "the script read a GPU value, which oomph does not compute: it got zero"


def read(oomph, code):
    """What the script was assumed to have read."""
    run = oomph(PRELUDE + code + "\nprint('checked')")
    assert run.status == 0 and "checked" in run.out, run.err
    return {a["what"] for a in run.json["assumptions"] if a["kind"] in ("value", "shape")}


@pytest.mark.parametrize(
    "write",
    [
        "y.fill_diagonal_(-float('inf'))",
        "y[0].zero_()",
        "y[:, 1] = 1",
        "y[1:3].copy_(torch.ones(2, 64))",
        "y.view(-1)[7:9].uniform_()",
        "y.diagonal().fill_(2)",
        "y[torch.arange(3, device=cuda)] = 0.",
        "y.masked_fill_(torch.eye(64, device=cuda) > 0, 1)",
        "y.tril_()",
        "y = torch.where(torch.eye(64, device=cuda) > 0, y, torch.zeros_like(y))",
        "torch.add(y, 1, out=y)",
        "torch.add(y[0], 1, out=y[1]); torch.ones(64, out=y[2])",
        "y.resize_(65, 64)",
    ],
)
def test_a_part_of_an_unknown_tensor_leaves_the_rest_unknown(oomph, write):
    """All of it passed for known after such a write, and no assumption was stated."""
    code = f"y = unknown[:64, :64].contiguous(); {write}; y[3, 5:].sum().item()"
    assert read(oomph, code) == {READ}


def test_an_unknown_part_of_a_large_known_tensor_is_unknown(oomph):
    code = """
wide = torch.ones(600, 600).cuda() * 2
assert wide.sum().item() == 720000.0
wide[3, :4] = unknown[0, :4]
assert wide[4:].sum().item() == 2 * 600 * 596
"""
    assert read(oomph, code) == set()
    assert read(oomph, code + "wide.sum().item()") == {READ}


def test_what_was_overwritten_is_known_part_by_part(oomph):
    code = """
y = unknown[:64, :64].contiguous()
y[0] = 1
assert y[0].sum().item() == 64
y[:, 3] = 2
assert y[:, 3].tolist() == [2.] * 64 and y[0].sum().item() == 65
for row in range(64):
    y[row].fill_(row)
assert y.sum().item() == 64 * 63 * 32 and bool((y[5] == 5).all())
torch.full((64, 64), 3., out=y)
assert y.sum().item() == 3 * 64 * 64
"""
    assert read(oomph, code) == set()


def test_known_values_leave_the_device_from_views_and_converted(oomph):
    """A kernel puts them in order first, and those do nothing: zeros came, and nothing was said."""
    code = """
x = torch.arange(24., device=cuda).view(4, 6); ids = torch.arange(24, device=cuda).view(4, 6)
assert x[:, 1].tolist() == [1., 7., 13., 19.] and ids[:, 1].tolist() == [1, 7, 13, 19]
assert x.t()[1:].cpu().tolist()[0] == [1., 7., 13., 19.] and x[:, ::3].to("cpu", torch.float64).tolist()[3] == [18., 21.]
assert x.to("cpu", torch.int64).tolist() == ids.tolist()
host = torch.zeros(4); host.copy_(x[:, 2]); assert host.tolist() == [2., 8., 14., 20.]
z = torch.complex(x, x)[:, 1].conj(); assert z.cpu().imag.tolist() == [-1., -7., -13., -19.]
assert z.imag.cpu()[0] == -1 and (z * 2)[1].item() == 14 - 14j and z.imag.clone().sum().item() == -40
"""
    assert read(oomph, code) == set()


def test_random_programs_agree_with_the_cpu(oomph):
    with open(os.path.join(ROOT, "tests", "support", "partial_writes.py")) as file:
        run = oomph(file.read(), args=("100",))
    assert run.status == 0 and "compared" in run.out, run.err
