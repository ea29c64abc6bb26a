"""Batches of any structure are cut along the samples, or refused with the place that does not fit."""

import dataclasses
from collections import namedtuple

import pytest
import torch
from oomph._training import nested
from oomph._training.loss_weights import tokens


@dataclasses.dataclass
class Pair:
    image: torch.Tensor
    name: list


Point = namedtuple("Point", "x y")
IMAGES = [torch.zeros(3, 4 + i, 4) for i in range(5)]
BOXES = [{"boxes": torch.zeros(i, 4), "labels": torch.zeros(i)} for i in range(5)]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(7, 2), 7),
        ({"x": torch.zeros(7, 2), "y": torch.zeros(7), "scale": torch.tensor(2.0)}, 7),
        ([torch.zeros(7, 2), torch.zeros(7, dtype=torch.long)], 7),
        ((torch.zeros(7, 2), {"mask": torch.ones(7, 3)}), 7),
        ((IMAGES, BOXES), 5),
        ((IMAGES[:3], BOXES[:3]), 3),  # three images of three channels
        (([torch.zeros(3, 4, 4)] * 3, BOXES[:3]), 3),
        ({"ids": torch.zeros(6, 9), "position_ids": torch.zeros(1, 9), "text": ["a"] * 6}, 6),
        (Pair(torch.zeros(4, 2), ["a", "b", "c", "d"]), 4),
        (Point(torch.zeros(4, 2), torch.zeros(4)), 4),
        ({"x": torch.zeros(1, 5)}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_size_and_parts(batch, size):
    assert nested.batch_size(batch) == size
    part = nested.part(batch, 1, size) if size > 1 else batch
    assert type(part) is type(batch)
    if size > 1:
        assert nested.batch_size(part) == size - 1 or size == 2


def test_parts_hold_their_samples():
    batch = {"x": torch.arange(6), "list": list("abcdef"), "row": torch.zeros(1, 3), "n": 3}
    part = nested.part(batch, 2, 4)
    assert part["x"].tolist() == [2, 3] and part["list"] == ["c", "d"]
    assert part["row"].shape == (1, 3) and part["n"] == 3
    images, boxes = nested.part((IMAGES, BOXES), 3, 5)
    assert [i.shape[1] for i in images] == [7, 8] and boxes[0]["boxes"].shape[0] == 3
    same = nested.part(([torch.zeros(3, 4, 4)] * 3, BOXES[:3]), 0, 1)
    assert len(same[0]) == 1 and same[0][0].shape == (3, 4, 4)


def test_hugging_face_batches_keep_their_class():
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.zeros(4, 3, dtype=torch.long)})
    part = nested.part(batch, 0, 3)
    assert isinstance(part, transformers.BatchEncoding) and part["input_ids"].shape == (3, 3)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": torch.zeros(7, 2), "y": torch.zeros(5)}, "cannot determine"),
        ("text", "cannot determine"),
        ([torch.zeros(3, 8, 8)] * 4, "fields or samples"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested tensors"),
    ],
)
def test_what_cannot_be_cut(batch, message):
    with pytest.raises(nested.BatchError, match=message):
        nested.batch_size(batch)


def test_sizes_of_ragged_samples():
    assert nested.sample_elements((IMAGES, ["a"] * 5), 5) == [3 * (4 + i) * 4 for i in range(5)]
    assert nested.sample_elements({"x": torch.zeros(4, 3)}, 4) is None


def test_tokens():
    labels = torch.tensor([[1, 2, -100], [3, -100, -100]])
    assert tokens()({"labels": labels}) == 1
    assert tokens(shift=False)({"labels": labels}) == 3
    with pytest.raises(TypeError, match=r"need batch\['labels'\].*x"):
        tokens()({"x": labels})
