"""Batches of every shape, in parts and together again."""

import collections
import dataclasses

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oomph.levers._shared.splitting import CannotSplit, sample_layout

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str


class Encoding(collections.UserDict):
    """As Hugging Face's BatchEncoding: a mapping that keeps more than its items."""

    def __init__(self, data=None, extra=None):
        super().__init__(data)
        self.extra = extra


def batches(n):
    x, y = torch.arange(n * 3.0).view(n, 3), torch.arange(n)
    return [
        x,
        (x, y),
        [x, y],
        {"x": x, "y": y, "scale": 2.0, "kind": "text", "none": None, "one": torch.tensor(1.0)},
        {"x": x, "names": [str(i) for i in range(n)], "more": {"y": y}},
        Pair(x, Pair(x, y)),
        Record(x, "all"),
        Encoding({"x": x, "y": y}, extra="kept"),
        [{"x": x[i], "y": y[i]} for i in range(n)],
        [(torch.zeros(i + 1, 2), i) for i in range(n)],
        (tuple(torch.zeros(3, i + 1) for i in range(n)), tuple({"y": y[i]} for i in range(n))),
        (x.numpy(), y),
    ]


def flat(value):
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return [torch.as_tensor(value)] if value.ndim else []
    if isinstance(value, collections.abc.Mapping):
        value = list(value.values())
    if dataclasses.is_dataclass(value):
        value = [value.x]
    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []


@given(n=st.integers(1, 9), parts=st.integers(1, 12))
def test_parts_are_the_whole(n, parts):
    for batch in batches(n):
        where = sample_layout(batch, n)
        pieces = where.split(batch, parts)
        sizes = [size for _, size in pieces]
        assert sum(sizes) == n and len(pieces) == min(parts, n)
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
        assert all(type(piece) is type(batch) for piece, _ in pieces)
        assert all(where.total(piece) == size for piece, size in pieces)
        whole = sorted(float(t.double().sum()) for t in flat(batch))
        total = sum(float(t.double().sum()) for piece, _ in pieces for t in flat(piece))
        assert total == pytest.approx(sum(whole))
    piece = sample_layout(Encoding({"x": torch.zeros(n, 1)}, "kept")).split(
        Encoding({"x": torch.zeros(n, 1)}, "kept"), parts
    )
    assert piece[0][0].extra == "kept"


@pytest.mark.parametrize(
    ("batch", "expected", "words"),
    [
        ((torch.zeros(35, 20), torch.zeros(35, 20)), 20, "first dimension"),
        ((torch.zeros(4, 2), torch.zeros(7)), 4, "differ in their first dimension (4, 7)"),
        ("text", None, "no tensors"),
        (object(), None, "no tensors"),
    ],
)
def test_what_has_no_samples_is_refused(batch, expected, words):
    with pytest.raises(CannotSplit) as found:
        sample_layout(batch, expected)
    assert words in str(found.value)


def test_tensors_are_views():
    x = torch.zeros(8, 2)
    assert all(piece._base is x for piece, _ in sample_layout(x).split(x, 3))
