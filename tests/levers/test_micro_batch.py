"""`micro_batch` in plain loops: gradients as without it, and refusals where they would not be."""

import pytest

from tests.support.levers import distance, run

SETUP = """
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    x, y = torch.randn(23, 8), torch.randint(0, 5, (23,))
    loader = DataLoader(TensorDataset(x, y), batch_size=10)   # the last batch has 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    out = []
    def keep():
        out.append([p.grad.clone() for p in model.parameters()])
"""


def both(tmp_path, body, parts=4, setup=SETUP, limit=1e-6):
    """Parameters and gradients after `body`, split and whole, are the same."""
    code = setup + body
    plain = run(tmp_path, code)
    split = run(tmp_path, code, ("micro_batch", {"parts": parts}))
    assert split.refusal is None, split.refusal
    assert split.levers["micro_batch"]["applied"] > 0
    assert distance(split.out, plain.out) <= limit
    return split


END = "\n    out = [p.detach() for p in model.parameters()]\n"

LOOPS = {
    "zero, backward, step": """
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
""",
    "step, then zero": """
    for a, b in loader:
        nn.CrossEntropyLoss()(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
""",
    "zero between forward and backward, of the model": """
    for a, b in loader:
        loss = F.cross_entropy(model(a), b)
        model.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "means over samples, then over all else": """
    for a, b in loader:
        optimizer.zero_grad()
        found = model(a)
        (found.pow(2).mean(0).sum() + 2 * found.sum(0).mean() - (3 * found.exp().sum(0)).sum()).backward()
        optimizer.step()
""",
    "ignored targets": """
    y[torch.rand(23) < 0.4] = -100
    y[:4] = -100
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "ignored targets, weights of classes, smoothing": """
    y[torch.rand(23) < 0.4] = 0
    criterion = nn.CrossEntropyLoss(weight=torch.rand(5), ignore_index=0, label_smoothing=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        criterion(model(a), b).backward()
        optimizer.step()
""",
    "a sum": """
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b, reduction="sum").backward()
        optimizer.step()
""",
    "a sum over the samples it has": """
    for a, b in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b, reduction="none").sum() / a.size(0)
        loss.backward()
        optimizer.step()
""",
    "a masked mean": """
    for a, b in loader:
        optimizer.zero_grad()
        mask = (b > 1)
        loss = (F.cross_entropy(model(a), b, reduction="none") * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()
""",
    "elements chosen by a mask": """
    for a, b in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b, reduction="none")[b > 1].mean()
        loss.backward()
        optimizer.step()
""",
    "targets that are probabilities": """
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), F.one_hot(b, 5).float() * 0.9 + 0.02).backward()
        optimizer.step()
""",
    "several losses and a penalty on weights": """
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        loss = 0.5 * F.cross_entropy(logits, b) + 0.1 * F.mse_loss(logits, torch.zeros_like(logits)) + 0.01 * logits.abs().mean()
        loss = loss + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
""",
    "a sum and a mean": """
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        loss = F.cross_entropy(logits, b) + 0.1 * logits.pow(2).sum()
        loss = loss + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
""",
    "a learned weight": """
    s = nn.Parameter(torch.tensor(0.3)); optimizer.add_param_group({"params": [s]}); model.s = s
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.exp(-s) * F.cross_entropy(model(a), b) + s
        loss.backward()
        optimizer.step()
""",
    "two backward passes": """
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        F.cross_entropy(logits, b).backward(retain_graph=True)
        logits.pow(2).mean().backward()
        optimizer.step()
""",
    "a loss a sample": """
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        torch.stack([F.cross_entropy(logits[i], b[i]) for i in range(len(b))]).mean().backward()
        optimizer.step()
""",
    "clipping by norm, a scheduler, an average": """
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    average = torch.optim.swa_utils.AveragedModel(model)
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
    model.average = average.module
""",
    "clipping by value with ignored targets": """
    from torch.nn.utils import clip_grad_value_
    y[torch.rand(23) < 0.4] = -100
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
""",
    "a scaler": """
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for a, b in loader:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(a), b)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
""",
    "two optimizers after one backward pass": """
    first = torch.optim.SGD(model[0].parameters(), lr=0.1); second = torch.optim.AdamW(model[2].parameters())
    for a, b in loader:
        first.zero_grad(); second.zero_grad()
        F.cross_entropy(model(a), b).backward()
        first.step(); second.step()
""",
    "evaluation between, frozen parameters": """
    for p in model[0].parameters(): p.requires_grad = False
    for epoch in range(2):
        model.train()
        for a, b in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        model.eval()
        sizes = [len(a) for a, b in loader if model(a) is not None]
        assert sizes == [10, 10, 3], sizes
        with torch.no_grad():
            assert [len(a) for a, b in loader] == [10, 10, 3]
""",
    "trained in evaluation mode": """
    model.eval()
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
""",
    "checkpointed blocks": """
    from torch.utils.checkpoint import checkpoint
    for a, b in loader:
        optimizer.zero_grad()
        hidden = checkpoint(model[:2], a, use_reentrant=False)
        F.cross_entropy(model[2](hidden), b).backward()
        optimizer.step()
""",
    "a loss that is added up, sample by sample": """
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        (sum(F.cross_entropy(logits[i], b[i]) for i in range(len(b))) / len(b)).backward()
        optimizer.step()
""",
    "a sum of losses of samples": """
    for a, b in loader:
        optimizer.zero_grad()
        sum(F.cross_entropy(row, target) for row, target in zip(model(a), b)).backward()
        optimizer.step()
""",
    "two losses for parts of two samples": """
    y[torch.rand(23) < 0.3] = -100
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    for a, b in loader:
        optimizer.zero_grad()
        logits = model(a)
        torch.stack([F.cross_entropy(logits, b), F.cross_entropy(logits * 2, b)]).mean().backward()
        optimizer.step()
""",
    "next of an iterator": """
    iterator = iter(loader)
    while True:
        try:
            a, b = next(iterator)
        except StopIteration:
            break
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "dictionaries": """
    loader = DataLoader([{"x": a, "y": b, "name": str(i)} for i, (a, b) in enumerate(zip(x, y))], batch_size=10, num_workers=1)
    for batch in loader:
        assert len(batch["name"]) == len(batch["x"])
        optimizer.zero_grad()
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
""",
    "samples that were not stacked": """
    loader = DataLoader(list(zip(x, y)), batch_size=10, collate_fn=lambda samples: samples)
    for samples in loader:
        optimizer.zero_grad()
        a, b = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "columns of ragged samples": """
    data = [(x[i, :3 + i % 5], y[i]) for i in range(23)]
    loader = DataLoader(data, batch_size=10, collate_fn=lambda samples: tuple(zip(*samples)))
    for rows, b in loader:
        optimizer.zero_grad()
        a = torch.stack([F.pad(r, (0, 8 - len(r))) for r in rows])
        F.cross_entropy(model(a), torch.stack(b)).backward()
        optimizer.step()
""",
    "a stream": """
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from zip(x, y)
    for a, b in DataLoader(Stream(), batch_size=10):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("loop", LOOPS, ids=list(LOOPS))
def test_training_is_the_same(tmp_path, loop):
    both(tmp_path, LOOPS[loop] + END)


def test_gradients_are_the_same_and_parts_are_seen(tmp_path):
    split = both(
        tmp_path,
        """
    sizes = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    y[torch.rand(23) < 0.4] = -100
    for i, (a, b) in enumerate(loader):
        sizes.append(len(a))
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.register_step_post_hook(lambda *_: keep()) if not i else None
        optimizer.step()
    assert len(out) == 3, len(out)
    print(sizes)
""",
    )
    assert "counts its iterations" in split.levers["micro_batch"]["note"]
    assert split.levers["micro_batch"]["applied"] == 3


def test_a_loop_left_within_a_batch_makes_its_update(tmp_path):
    result = run(
        tmp_path,
        SETUP
        + """
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    begin = [p.detach().clone() for p in model.parameters()]
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        if i == 1:
            break
    found = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    for p, b in zip(model.parameters(), begin): p.data.copy_(b)
    F.cross_entropy(model(x[:6]), y[:6]).backward()
    out = [found, [b - p.grad for p, b in zip(model.parameters(), begin)]]
""",
        ("micro_batch", {"parts": 4}),
    )
    assert distance(result.out[0], result.out[1]) < 1e-6
    assert "left the loop within a batch" in result.levers["micro_batch"]["note"]


REFUSED = {
    "batch normalization": (
        "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "F.cross_entropy(model(a), b).backward(); optimizer.step()",
        "batch normalization",
    ),
    "batch normalization as a function": (
        "",
        "F.cross_entropy(F.batch_norm(model(a), None, None, training=True), b).backward(); optimizer.step()",
        "batch normalization",
    ),
    "contrastive": (
        "",
        "z = F.normalize(model(a)); F.cross_entropy(z @ model(a + 1).t(), torch.arange(len(z))).backward(); optimizer.step()",
        "compares the samples",
    ),
    "negatives of the batch": (
        "",
        "z = model(a); far = z[torch.randint(len(z), (len(z), 3))].mean(1); (1 - (z - far).square()).mean().backward(); optimizer.step()",
        "picks activations of other samples",
    ),
    "the sample before": (
        "",
        "z = model(a); (z - z.index_select(0, torch.arange(len(z)).roll(1))).square().mean().backward(); optimizer.step()",
        "picks activations of other samples",
    ),
    "variance over the batch": (
        "",
        "(1 - model(a).std(dim=0)).mean().backward(); optimizer.step()",
        "variance",
    ),
    "norm of the batch": ("", "model(a).norm().backward(); optimizer.step()", "not a sum"),
    "root of a mean": ("", "model(a).pow(2).mean().sqrt().backward(); optimizer.step()", "not a sum"),
    "entropy of a mean": (
        "",
        "p = model(a).softmax(1).mean(0); (p * p.log()).sum().backward(); optimizer.step()",
        "a mean over the samples",
    ),
    "balance of experts": (
        "",
        "p = model(a).softmax(1); (F.one_hot(p.argmax(1), 5).float().mean(0) * p.mean(0)).sum().backward(); optimizer.step()",
        "a mean over the samples",
    ),
    "an unknown divisor": ("", "(model(a).sum() / 7).backward(); optimizer.step()", "divides the sum"),
    "accumulation": (
        "count = 0",
        "F.cross_entropy(model(a), b).backward(); count += 1\n        if count % 3 != 1: optimizer.step(); optimizer.zero_grad()",
        "accumulates gradients",
    ),
    "closure": (
        "optimizer = torch.optim.LBFGS(model.parameters())",
        "optimizer.step(lambda: (optimizer.zero_grad(), (l := F.cross_entropy(model(a), b)).backward(), l)[2])",
        "closure",
    ),
    "two updates": (
        "other = torch.optim.SGD(model.parameters(), lr=0.1)",
        "F.cross_entropy(model(a), b).backward(); optimizer.step(); model(a).sum().backward(); other.step()",
        "more than once",
    ),
    "gradients dropped by hand": (
        "",
        "\n        for p in model.parameters(): p.grad = None\n        F.cross_entropy(model(a), b).backward(); optimizer.step()",
        "drops gradients itself",
    ),
    "gradients clipped by hand": (
        "",
        "optimizer.zero_grad(); F.cross_entropy(model(a), b).backward()\n        for p in model.parameters(): p.grad.clamp_(-0.1, 0.1)\n        optimizer.step()",
        "changes or drops gradients itself",
    ),
    "a prefetcher": (
        "batches = iter(loader); ahead = [next(batches)]\n    def fetch():\n        for batch in batches: ahead.append(batch); yield ahead.pop(0)\n    loader = fetch()",
        "F.cross_entropy(model(a), b).backward(); optimizer.step(); optimizer.zero_grad()",
        "prefetcher",
    ),
    "two loaders": (
        "loader = [(a, b) for a, b in zip(x, y)]; loader = zip(DataLoader(loader, batch_size=10), DataLoader(loader, batch_size=4))",
        "F.cross_entropy(model(a[0]), a[1]).backward(); optimizer.step()",
        "several DataLoaders",
    ),
    "no samples first": (
        "loader = DataLoader(TensorDataset(x, y), batch_size=10, collate_fn=lambda s: torch.stack([a for a, _ in s], 1))",
        "pass",
        "first dimension",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=list(REFUSED))
def test_what_cannot_be_split_is_refused_by_name(tmp_path, case):
    setup, body, expected = REFUSED[case]
    names = "batch" if case == "no samples first" else "a, b"
    code = SETUP + f"    {setup}\n    for {names} in loader:\n        {body}\n"
    result = run(tmp_path, code, ("micro_batch", {"parts": 2}))
    assert result.refusal is not None and expected in result.refusal
    assert "micro_batch" in result.refusal


def test_a_loop_without_a_loader_is_refused(tmp_path):
    code = SETUP + "    F.cross_entropy(model(x), y).backward(); optimizer.step()\n"
    result = run(tmp_path, code, ("micro_batch", {"parts": 2}))
    assert "do not come from a DataLoader" in result.refusal


def test_different_counts_in_one_loss_are_refused_if_they_vary(tmp_path):
    code = (
        SETUP
        + """
    y[:5] = -100
    for a, b in loader:
        logits = model(a)
        (F.cross_entropy(logits, b) + logits.pow(2).mean()).backward()
        optimizer.step(); optimizer.zero_grad()
"""
    )
    result = run(tmp_path, code, ("micro_batch", {"parts": 4}))
    assert "different counts" in result.refusal


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize(
    "targets", ["", "y[torch.rand(40) < 0.4] = -100; y[10:13] = -100"], ids=["all", "some"]
)
@pytest.mark.parametrize(
    "update",
    [
        "if (i + 1) % 2 == 0:\n            clip(); optimizer.step(); schedule.step(); optimizer.zero_grad()",
        "if i % 2 == 0: pass\n        else:\n            clip(); optimizer.step(); schedule.step()\n            for p in model.parameters(): p.grad = None",
        "each.step()\n        if (i + 1) % 4 == 0 or i + 1 == len(loader):\n            optimizer.step(); schedule.step(); model.zero_grad()",
    ],
    ids=["every second", "cleared by hand", "every fourth"],
)
def test_a_loop_that_accumulates_batches(tmp_path, update, targets, parts):
    body = """
    x, y = torch.randn(40, 8), torch.randint(0, 5, (40,))
    TARGETS
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    each = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], 1.0), 1, 0.9)
    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    for epoch in range(2):
        for i, (a, b) in enumerate(loader):
            (F.cross_entropy(model(a), b) / 2).backward()
            UPDATE
    out = [p.detach() for p in model.parameters()], schedule.get_last_lr(), each.get_last_lr()
    """.replace("UPDATE", update.replace("\n", "\n    ")).replace("TARGETS", targets)  # fmt: skip
    code = SETUP + body
    plain, split = run(tmp_path, code), run(tmp_path, code, ("micro_batch", {"parts": parts}))
    if "p.grad = None" in update:
        assert "drops gradients" in split.refusal
        return
    assert split.refusal is None, split.refusal
    assert split.out[1:] == plain.out[1:]
    assert distance(split.out[0], plain.out[0]) <= 1e-6


def test_a_last_update_of_fewer_batches_is_refused_before_it_comes(tmp_path):
    body = """
    for i, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
        F.cross_entropy(model(a), b).backward()
        if (i + 1) % 2 == 0: optimizer.step(); optimizer.zero_grad()
    """
    assert "are fewer" in run(tmp_path, SETUP + body, ("micro_batch", {"parts": 2})).refusal
