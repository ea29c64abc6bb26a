"""What a user would write, about memory."""

import unittest

import pytest
import torch
from torch import nn

MIB = 2**20


class Net(nn.Module):
    def __init__(self, width=4096):
        super().__init__()
        self.up = nn.Linear(1024, width)
        self.down = nn.Linear(width, 1024)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def net():
    return Net().cuda()


@pytest.fixture(scope="module")
def shared():
    """32 MiB of weights for all tests."""
    return Net().cuda()


def train(net, steps=2):
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(64, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"loss {loss.item():.3f}")
    return losses


@pytest.mark.gpu_memory("200 MiB")
def test_trains_within(net):
    train(net)


@pytest.mark.gpu_memory("64 MiB")
def test_trains_above(net):
    train(net)


@pytest.mark.limit_gpu_leaks("1 MiB")
def test_leaks_nothing(net):
    train(net)


@pytest.mark.limit_gpu_leaks("1 MiB")
def test_a_cycle_is_no_leak():
    a = [torch.zeros(MIB, device="cuda")]
    a.append(a)


def test_reads_its_memory(net, gpu_memory):
    assert gpu_memory.allocated > 32 * MIB
    train(net, steps=3)
    assert 128 * MIB < gpu_memory.peak <= gpu_memory.reserved
    assert gpu_memory.peak == torch.cuda.max_memory_allocated()
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    categories = gpu_memory.categories
    assert categories["parameters"] == weights and categories["optimizer_state"] == 2 * weights
    assert sum(categories.values()) == gpu_memory.peak
    assert len(gpu_memory.steps) == 3 and max(gpu_memory.steps) == gpu_memory.peak
    assert any("Net.up" in module for module in gpu_memory.modules)
    assert any(" in train" in place for place in gpu_memory.places)


def test_resets_the_peak_itself(gpu_memory):
    torch.zeros(40 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() < gpu_memory.peak


def test_runs_out_of_memory(net):
    held = torch.zeros(20 << 30, dtype=torch.uint8, device="cuda")
    net(torch.zeros(1 << 20, 1024, device="cuda"))
    del held


dropped = []


def test_leaves_some_behind():
    dropped.append(torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda"))


@pytest.mark.gpu_memory("17 MiB")
def test_what_goes_meanwhile_does_not_count():
    dropped.clear()
    torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")


def test_expects_to_run_out():
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(40 << 30, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_of_several_sizes(size):
    torch.zeros(size * 16 * MIB, dtype=torch.uint8, device="cuda")


kept = []


@pytest.mark.limit_gpu_leaks("1 MiB")
def test_leaks():
    kept.append(torch.zeros(4 * MIB, device="cuda"))


class TestOfUnittest(unittest.TestCase):
    def setUp(self):
        self.x = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")

    @pytest.mark.gpu_memory("12 MiB")
    def test_within(self):
        self.assertEqual(self.x.numel(), 8 * MIB)

    @pytest.mark.gpu_memory("12 MiB")
    def test_above(self):
        y = self.x + 1
        self.assertEqual(y.shape, self.x.shape)


@pytest.mark.gpu_memory("100 MiB")
def test_what_others_share_counts(shared):
    assert shared(torch.zeros(1, 1024, device="cuda")).shape == (1, 1024)


@pytest.mark.gpu_memory("17 MiB")
def test_what_others_left_does_not_count():
    torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")


@pytest.mark.gpu_memory("1 B")
def test_without_a_gpu():
    pass
