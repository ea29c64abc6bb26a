"""The lever `shard`: two ranks on the CPU train what one process trains."""

import os
import socket

import pytest
import torch
from lever_runs import distance, run

MODEL = """
    from torch.utils.data import DataLoader, TensorDataset

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

        def forward(self, x):
            return x + self.mlp(self.norm(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def whole(value):
        return value.full_tensor() if hasattr(value, "full_tensor") else value.detach()

    def weights(model):
        return {name: whole(p).clone() for name, p in model.named_parameters()}
"""

TRAIN = (
    MODEL
    + """
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    tokens = torch.randint(50, (22, 9))
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape) < 0.3] = -100
    data = DataLoader(TensorDataset(tokens[:, :-1], labels), batch_size=6, shuffle=True)
    losses = []
    for epoch in range(2):
        for x, y in data:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=REDUCTION)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses += [loss.item(), float(norm)]
    out = [torch.tensor(losses), weights(model)]
"""
)

BLOCKS = [f"Net.blocks.{index}" for index in range(3)]
DDP = dict(shards=1)
FSDP = dict(shards=2, modules=BLOCKS)


def ranks(tmp_path, code, *levers, world=2, **names):
    """Run `code` as `world` ranks, each a process; their results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        place = tmp_path / f"rank-{rank}-{os.urandom(3).hex()}"
        place.mkdir()
        child = os.fork()
        if child == 0:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
            )  # fmt: skip
            status = 1
            try:
                found = run(place, code, *levers, **names)
                torch.save([found.out, found.levers, found.refusal], place / "found")
                status = 0
            except AssertionError as error:
                print(error)
            finally:
                os._exit(status)
        children.append((child, place))
    results = []
    for child, place in children:
        _, status = os.waitpid(child, 0)
        results.append(
            torch.load(place / "found", weights_only=False)
            if os.waitstatus_to_exitcode(status) == 0
            else None
        )
    assert all(results), "a rank failed; see what it printed"
    return results


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("how", [DDP, FSDP, dict(FSDP, reshard=False)], ids=["ddp", "fsdp", "kept"])
def test_two_ranks_train_what_one_process_trains(tmp_path, how, reduction):
    """Losses, norms and weights, with targets that are ignored and a last batch of four."""
    alone = run(tmp_path, TRAIN, REDUCTION=reduction)
    for out, levers, refusal in ranks(tmp_path, TRAIN, ("shard", dict(gpus=2, **how)), REDUCTION=reduction):
        assert refusal is None and levers["shard"]["applied"] >= 1
        assert distance(out[0], alone.out[0]) < 1e-4
        assert distance(out[1], alone.out[1]) < 1e-4
