"""Batches under a budget: every sample once, the same number a rank, reproducible and resumable."""

import array

import oomph
import pytest
import torch

LENGTHS = [1 + (i * 7919) % 300 for i in range(5000)]


def batches(**options):
    return list(oomph.MemoryBatchSampler(LENGTHS, 3000, **options))


def padded(batch):
    return max(LENGTHS[i] for i in batch) * len(batch)


def test_every_sample_once_under_the_budget():
    found = batches()
    assert sorted(i for batch in found for i in batch) == list(range(5000))
    assert all(padded(batch) <= 3000 for batch in found)
    sampler = oomph.MemoryBatchSampler(LENGTHS, 3000)
    assert len(sampler) == len(found) and sampler.padding() < 0.05


def test_seeds_epochs_and_order():
    assert batches(seed=1) == batches(seed=1) != batches(seed=2)
    sampler = oomph.MemoryBatchSampler(LENGTHS, 3000)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    largest = batches(largest_first=True)
    assert padded(largest[0]) == max(map(padded, largest))
    lengths = [LENGTHS[b[0]] for b in batches(shuffle=False, window=0)]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_have_as_many_batches_of_like_cost(ranks):
    each = [batches(rank=r, ranks=ranks) for r in range(ranks)]
    assert len({len(e) for e in each}) == 1
    assert sorted(i for e in each for b in e for i in b) == list(range(5000))
    steps = list(zip(*each, strict=True))
    even = sum(min(map(padded, s)) / max(map(padded, s)) for s in steps) / len(steps)
    assert even > 0.95


def test_it_goes_on_where_it_was():
    whole = batches(seed=5)
    sampler = oomph.MemoryBatchSampler(LENGTHS, 3000, seed=5)
    running = iter(sampler)
    seen = [next(running) for _ in range(10)]
    state = sampler.state_dict()
    fresh = oomph.MemoryBatchSampler(LENGTHS, 3000, seed=5)
    fresh.load_state_dict(state)
    assert seen + list(fresh) == whole
    assert list(fresh) == whole  # the next epoch begins at the beginning
    with pytest.raises(ValueError, match="seed was 5, is 6"):
        oomph.MemoryBatchSampler(LENGTHS, 3000, seed=6).load_state_dict(state)


def test_samples_above_the_budget():
    lengths = [10, 20, 5000, 30]
    with pytest.raises(ValueError, match="sample 2 of length 5000"):
        list(oomph.MemoryBatchSampler(lengths, 100))
    assert [2] in list(oomph.MemoryBatchSampler(lengths, 100, oversize="single"))
    kept = list(oomph.MemoryBatchSampler(lengths, 100, oversize="drop"))
    assert sorted(i for b in kept for i in b) == [0, 1, 3]


def test_costs_in_bytes_with_a_square():
    cost = oomph.SampleCost(linear=2.0, quadratic=0.1, base=1000.0)
    sampler = oomph.MemoryBatchSampler(LENGTHS, 30_000, cost=cost, max_samples=50)
    for batch in sampler:
        assert cost.batch(len(batch), max(LENGTHS[i] for i in batch)) <= 30_000
        assert len(batch) <= 50
    with pytest.raises(ValueError, match="leaves nothing above the base"):
        oomph.MemoryBatchSampler(LENGTHS, 1000, cost=cost)


def test_kinds_of_lengths():
    expected = batches()
    numpy = pytest.importorskip("numpy")
    for lengths in (array.array("I", LENGTHS), numpy.array(LENGTHS), torch.tensor(LENGTHS)):
        assert list(oomph.MemoryBatchSampler(lengths, 3000)) == expected
    for wrong in ([1, -2], ["a"], numpy.array([1.5]), numpy.array([[1]]), [2**33]):
        with pytest.raises(ValueError, match="lengths"):
            oomph.MemoryBatchSampler(wrong, 3000)


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(oversize="x"), "oversize"), (dict(rank=2, ranks=2), "rank"), (dict(seed=0, window=0, max_samples=None, ranks=9999, rank=0), "too few")],
)  # fmt: skip
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        len(oomph.MemoryBatchSampler(LENGTHS, 3000, **options))


def test_with_a_data_loader():
    data = [torch.zeros(n) for n in LENGTHS[:200]]
    sampler = oomph.MemoryBatchSampler(LENGTHS[:200], 3000)
    loader = torch.utils.data.DataLoader(
        data,
        batch_sampler=sampler,
        collate_fn=lambda b: torch.nn.utils.rnn.pad_sequence(b, batch_first=True),
    )
    assert all(batch.numel() <= 3000 for batch in loader)
