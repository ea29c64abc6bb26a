"""The lever `shard`: two ranks on the CPU train what one process trains."""

import os
import socket

import pytest
import torch

from tests.support.levers import distance, run

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
            # PyTorch makes its thread pool anew at the first call after a fork, which must not be two.
            torch.set_num_threads(1)
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
    for out, levers, refusal in ranks(
        tmp_path, TRAIN, ("shard", dict(gpus=2, **how)), REDUCTION=reduction
    ):
        assert refusal is None and levers["shard"]["applied"] >= 1
        assert distance(out[0], alone.out[0]) < 1e-4
        assert distance(out[1], alone.out[1]) < 1e-4


def test_micro_batches_of_a_share(tmp_path):
    """Each rank computes its part of a batch in two, unequal ones included."""
    alone = run(tmp_path, EVEN)
    for how in (DDP, FSDP):
        for out, levers, refusal in ranks(
            tmp_path, EVEN, ("micro_batch", dict(parts=2)), ("shard", dict(gpus=2, **how))
        ):
            assert refusal is None and levers["micro_batch"]["applied"]
            assert distance(out, alone.out) < 1e-4


def test_a_batch_smaller_than_the_ranks_counts_once(tmp_path):
    """The last batch has one sample for two ranks: one of them computes it for nothing."""
    code = EVEN.replace("(24, 16)", "(13, 16)")
    alone = run(tmp_path, code)
    for out, _, refusal in ranks(tmp_path, code, ("shard", dict(gpus=2, **FSDP))):
        assert refusal is None
        assert distance(out, alone.out) < 1e-4


EVEN = (
    MODEL
    + """
    model = nn.Sequential(nn.Linear(16, 32), *(Block2() for _ in range(2)), nn.Linear(32, 4))
    for p in model[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x = torch.randn(24, 16)
    for (x,) in DataLoader(TensorDataset(x), batch_size=6, shuffle=True):
        optimizer.zero_grad()
        (model(x).square().mean()).backward()
        optimizer.step()
    out = weights(model)
"""
).replace(
    "    class Net",
    """    class Block2(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU())

        def forward(self, x):
            return x + self.inner(x)

    class Net""",
)

SAVED = (
    MODEL
    + """
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randint(50, (8, 5))
    data = DataLoader(TensorDataset(x), batch_size=4)
    def epoch():
        for (x,) in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimizer.step()
    epoch()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, PATH)
    epoch()
    first = weights(model)
    saved = torch.load(PATH, weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch()
    out = [first, weights(model), saved["model"]]
"""
)


def test_what_is_saved_is_whole_and_is_dealt_out_again(tmp_path):
    """A checkpoint is as one process writes it, and training goes on from it as it went on."""
    alone = run(tmp_path, SAVED, PATH=str(tmp_path / "alone.pt"))
    for out, _, refusal in ranks(
        tmp_path, SAVED, ("shard", dict(gpus=2, **FSDP)), PATH=str(tmp_path / "ranks.pt")
    ):
        assert refusal is None
        assert distance(out[0], out[1]) == 0
        assert distance(out, alone.out) < 1e-4
        assert not any(hasattr(value, "full_tensor") for value in out[2].values())


REFUSALS = {
    "is already distributed": """
        torch.distributed.init_process_group("gloo")
    """,
    "do not come from its own DataLoader": """
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    """,
    "fewer than the 2 ranks": """
        from torch.utils.data import DataLoader
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DataLoader(torch.randn(4, 4), batch_size=1):
            model(x).sum().backward()
            optimizer.step()
    """,
    "compares the samples": """
        from torch.utils.data import DataLoader
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DataLoader(torch.randn(16, 4), batch_size=8):
            a = model(x)
            F.cross_entropy(a @ a.T, torch.arange(len(a))).backward()
            optimizer.step()
    """,
    "SyncBatchNorm": """
        from torch.utils.data import DataLoader
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DataLoader(torch.randn(16, 4), batch_size=8):
            model(x).sum().backward()
            optimizer.step()
    """,
    "Hugging Face's Trainer has its own support": """
        import transformers
        transformers.Trainer(nn.Linear(4, 4))
    """,
    "belongs to no module": """
        from torch.utils.data import DataLoader
        model = nn.Linear(4, 4)
        scale = nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
        for x in DataLoader(torch.randn(16, 4), batch_size=8):
            (model(x).sum() * scale).backward()
            optimizer.step()
    """,
}


@pytest.mark.parametrize("why", REFUSALS)
def test_what_cannot_be_shared_out_is_refused_by_name(tmp_path, why):
    """On every rank, before anything is trained."""
    for out, _, refusal in ranks(tmp_path, REFUSALS[why], ("shard", dict(gpus=2))):
        assert out is None
        assert refusal is not None and why in refusal, refusal


def test_one_process_is_told_how_to_start(tmp_path):
    """A plan for two GPUs in a process that no launcher started."""
    refusal = run(tmp_path, "out = 1", ("shard", dict(gpus=2))).refusal
    assert "2 ranks" in refusal and "there is 1" in refusal


def test_parameters_without_gradients(tmp_path):
    """A part of the model that some steps do not use: DistributedDataParallel is told to look for it."""
    code = EVEN.replace(
        "    optimizer = ",
        "    model.extra = nn.Linear(2, 2)\n    model.forward = lambda x: model[:-1](x)\n    optimizer = ",
    )
    assert code != EVEN
    alone = run(tmp_path, code)
    for out, _, refusal in ranks(tmp_path, code, ("shard", dict(gpus=2, unused=True))):
        assert refusal is None
        assert distance(out, alone.out) < 1e-4


STEP = (
    MODEL
    + """
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(50, (12, 9))
    losses = [0.0]
    for x, y in DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=4):
        optimizer.zero_grad()
        BODY
        optimizer.step()
    out = [torch.tensor(losses), weights(model)]
"""
)


def step(body):
    """STEP with these lines in its loop."""
    return STEP.replace("        BODY\n", body.lstrip("\n"))


SEVERAL_PASSES = """
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        other = F.cross_entropy(model(y).flatten(0, 1), x.flatten())
        loss.backward()
        other.backward()
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        losses += [loss.item(), other.item()]
"""

SCALED = """
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        torch.amp.GradScaler("cpu", init_scale=4.0).scale(loss).backward()
        losses.append(loss.item())
"""

SUMS = """
        z = model(x)
        loss = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") + z.square().sum()
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    "body", [SEVERAL_PASSES, SCALED, SUMS], ids=["several passes", "scaled", "sums"]
)
def test_gradients_and_the_losses_that_the_script_reads(tmp_path, body):
    """Two forward passes before their backward passes; what a GradScaler was given; a sum of sums."""
    alone = run(tmp_path, step(body))
    for how in (DDP, dict(DDP, unused=True), FSDP):
        for out, _, refusal in ranks(tmp_path, step(body), ("shard", dict(gpus=2, **how))):
            assert refusal is None
            assert distance(out[0], alone.out[0]) < 1e-5 and distance(out[1], alone.out[1]) < 1e-6


def test_a_loss_of_terms_that_count_differently_is_said_to_be_read_in_part(tmp_path):
    code = step(SUMS.replace(', reduction="sum"', ""))
    alone = run(tmp_path, code)
    for out, levers, refusal in ranks(tmp_path, code, ("shard", dict(gpus=2, **DDP))):
        assert refusal is None and distance(out[1], alone.out[1]) < 1e-6
        assert "terms with different counts" in levers["shard"]["note"]


GRADIENTS_BY_HAND = """
        parameters = list(model.parameters())
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = gradient
"""

UNFREEZES = """
        model.embed.weight.requires_grad_(len(losses) > 1)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        losses.append(loss.item())
"""

PARTS = """
        if len(losses) == 1:
            model.blocks[0](torch.randn(2, 16)).sum().backward()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        losses.append(0.0)
"""


@pytest.mark.parametrize(
    "body, why",
    [
        (GRADIENTS_BY_HAND, "asks for gradients of parameters"),
        (UNFREEZES, "was frozen (requires_grad)"),
        (PARTS, "Net has parts that were called by themselves"),
    ],
)
def test_gradients_that_nobody_would_average_are_refused(tmp_path, body, why):
    """The ranks' weights would part without a word."""
    for _, _, refusal in ranks(tmp_path, step(body), ("shard", dict(gpus=2, **DDP))):
        assert refusal is not None and why in refusal, refusal


def test_parameters_that_are_unfrozen_are_sharded_all_the_same(tmp_path):
    alone = run(tmp_path, step(UNFREEZES))
    for out, _, refusal in ranks(tmp_path, step(UNFREEZES), ("shard", dict(gpus=2, **FSDP))):
        assert refusal is None and distance(out, alone.out) < 1e-6


WHOLE_MODELS = (
    MODEL
    + """
    import copy, gc, os, time, weakref

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
            self.last = nn.Linear(self.inner(torch.zeros(1, 16)).shape[1], 4)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.last(self.inner(x)) * self.scale

    references, out = [], []
    for trial in range(2):
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(8, 16)), batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            average = copy.deepcopy(model)(x)
        references += [weakref.ref(t) for t in (model, model.last.weight, model.last.weight.grad)]
        out.append(weights(model))
        time.sleep(float(os.environ.get("RANK", 0)))  # the other rank opens the file later
        with open(PATH, "wb") as file:
            torch.save(model.inner, file)
        del model, optimizer
        gc.collect()
    out.append([float(reference() is None) for reference in references])
"""
)


def test_models_are_saved_and_let_go_as_ever(tmp_path):
    """As a whole, to a file that every rank opens; after a part was tried before there was a model."""
    place = tmp_path / "saved.pt"
    alone = run(tmp_path, WHOLE_MODELS, PATH=str(place))
    plain = place.read_bytes()
    for out, levers, refusal in ranks(
        tmp_path, WHOLE_MODELS, ("shard", dict(gpus=2, **DDP)), PATH=str(place)
    ):
        assert refusal is None and levers["shard"]["applied"] == 2
        assert distance(out[:2], alone.out[:2]) < 1e-6
        assert out[2] == [1.0] * 6, "something keeps a model alive"
    assert len(place.read_bytes()) == len(plain)
    saved = torch.load(place, weights_only=False)
    assert distance(saved[0].weight, alone.out[1]["inner.0.weight"]) < 1e-6


def test_parts_of_batches_that_are_not_trained_on_are_told(tmp_path):
    """An evaluation that nothing tells from training, as gradients are off inside of its loop only."""
    code = EVEN.replace(
        "    out = weights(model)",
        """    for (x,) in DataLoader(TensorDataset(x), batch_size=6):
        with torch.no_grad():
            model(x)
    out = weights(model)""",
    )
    assert code != EVEN
    for _, levers, refusal in ranks(tmp_path, code, ("shard", dict(gpus=2, **DDP))):
        assert refusal is None
        assert "1 batches were split among ranks, but not trained on" in levers["shard"]["note"]
