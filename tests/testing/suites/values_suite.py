"""What a user would write, about numbers: which are real, and which must not pass."""

import unittest

import numpy
import pytest
import torch
from torch import nn


@pytest.fixture
def unknown():
    x = torch.randn(3000, 3000, device="cuda")
    return x @ x


def largest(t):
    return t.abs().max().item()


def same(a, b):
    assert (a == b).all()


# ---- real values: these pass for what they say ----


def test_real_product():
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    torch.testing.assert_close((x @ x.T).cpu(), torch.tensor([[5.0, 14.0], [14.0, 50.0]]))


def test_real_layer_is_the_cpus():
    layer, x = nn.Linear(64, 32), torch.randn(16, 64)
    torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), layer.cpu()(x))


def test_real_wrong_value():
    assert torch.arange(10, device="cuda").sum().item() == 46


# ---- unknown values that decide nothing: these pass ----


def test_shape_alone(unknown):
    assert unknown.shape == (3000, 3000)


def test_only_printed(unknown):
    print(f"norm {unknown.norm().item():.3f}")


def test_only_logged(unknown):
    history = []
    for _ in range(3):
        history.append(unknown.mean().item())


# ---- unknown values that decide: none of these may pass ----


def test_unknown_item(unknown):
    assert unknown.sum().item() == 0


def test_unknown_item_in_a_variable(unknown):
    total = unknown.sum().item()
    assert total == 0


def test_unknown_bool(unknown):
    assert not unknown.isnan().any()


def test_unknown_assert_close(unknown):
    torch.testing.assert_close(unknown.cpu(), torch.zeros(3000, 3000))


def test_unknown_equal(unknown):
    assert torch.equal(unknown, unknown + 1)


def test_unknown_allclose(unknown):
    assert torch.allclose(unknown, unknown + 1)


def test_unknown_copied(unknown):
    copy = unknown.cpu() + 1
    assert (copy == 1).all()


def test_unknown_numpy(unknown):
    numpy.testing.assert_allclose(unknown.cpu().numpy(), numpy.zeros((3000, 3000)))


def test_unknown_approx(unknown):
    assert unknown.mean().item() == pytest.approx(0)


def test_unknown_in_a_helper(unknown):
    assert largest(unknown) == 0


def test_unknown_in_a_helpers_assertion(unknown):
    copy = unknown.cpu()
    same(copy, torch.zeros(3000, 3000))


def test_unknown_raises_by_hand(unknown):
    if unknown.sum().item() != 0:
        raise ValueError("wrong")


class TestOfUnittest(unittest.TestCase):
    def test_unknown_equal_of_unittest(self):
        x = torch.randn(3000, 3000, device="cuda")
        self.assertEqual((x @ x).sum().item(), 0)


@pytest.mark.gpu_uncomputed("skip")
def test_skipped_by_its_marker(unknown):
    assert unknown.sum().item() == 0


@pytest.mark.gpu_uncomputed("ignore")
def test_ignored_by_its_marker(unknown):
    assert unknown.sum().item() == 0


# ---- unknown values that fail: the failure says so ----


def test_fails_by_the_rule(unknown):
    torch.testing.assert_close(unknown, unknown + 1)
