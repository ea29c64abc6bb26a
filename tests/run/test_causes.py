"""Why a run ran out of memory: causes and fixes from the run without a limit."""

import subprocess
from pathlib import Path

import pytest

from tests.support import schemas
from tests.support.command import OOMPH

ATTENTION = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(-2, -1) / 8
            return scores.softmax(-1) @ v

    model = nn.Sequential(*[Attention() for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 1024, 64, device="cuda")).mean().backward()
        optimizer.step()
"""

# Half of what its attention keeps is made by a module within it, and most of the rest by its other layers.
WITH_DROPOUT = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.up, self.down = nn.Linear(64, 1024), nn.Linear(1024, 64)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(-2, -1) / 8
            x = x + self.out(self.dropout(scores.softmax(-1)) @ v)
            return x + self.dropout(self.down(nn.functional.gelu(self.up(x))))

    model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 512, 64, device="cuda")).mean().backward()
        optimizer.step()
"""

INFERENCE = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]).cuda()
    outputs = []
    for _ in range(6):
        outputs.append(model(torch.randn(65536, 1024, device="cuda")))
"""

TEACHER = """
    import torch
    from torch import nn

    def net():
        return nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(12)])

    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return self.net(x)

    def main():
        teacher, student = Teacher().cuda().eval(), nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(student.parameters(), 0.1)
        for _ in range(3):
            x = torch.randn(65536, 512, device="cuda")
            loss = (student(x) - teacher(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    main()
"""

KEPT = """
    import torch
    from torch import nn

    model = nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    history = {"a": []}
    for _ in range(100):
        optimizer.zero_grad()
        out = model(torch.randn(4096, 2048, device="cuda"))
        out.sum().backward()
        optimizer.step()
        history["a"].append(out)
"""

TWICE = """
    import torch
    from torch import nn

    def train():
        model = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(12)])
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 2048, device="cuda")).mean().backward()
            optimizer.step()
        return model, optimizer

    first = train()
    second = train()
"""


def test_attention_that_is_written_out_is_the_first_fix(oomph):
    run = oomph(ATTENTION, "--memory", "3GiB")
    assert run.status == 3
    assert run.json["cause"]["id"] == "attention_scores"
    assert "script.py:1" in run.json["cause"]["verdict"]
    (fix, *_) = run.json["fixes"]
    # Eight layers keep the softmax of their scores, 256 MiB each; the last also makes the scores.
    assert fix["lever"] == "attention" and fix["saves_bytes"] > 2 << 30
    assert fix["enough"] is True and fix["left_bytes"] == 0
    assert "enough alone" in " ".join(run.out.split())
    assert "nothing that should not be there" not in run.out


def test_the_dropout_of_scores_is_part_of_them(oomph):
    run = oomph(WITH_DROPOUT, "--memory", "1.5GiB")
    assert run.json["cause"]["id"] == "attention_scores", run.json["cause"]
    # Six layers keep the softmax (64 MiB), its dropout (64 MiB) and the dropout's mask (16 MiB).
    (fix, *_) = run.json["fixes"]
    assert fix["lever"] == "attention" and fix["saves_bytes"] > 6 * (120 << 20)


def test_bytes_come_from_the_run_without_a_limit(oomph):
    limited = oomph(ATTENTION, "--memory", "2GiB", "--no-measure").json
    whole = oomph(ATTENTION, "--memory", "2GiB").json
    assert limited["fixes"][0]["saves_bytes"] < 2 << 30 < whole["fixes"][0]["saves_bytes"]
    assert "enough" not in limited["fixes"][0]


def test_figures_are_at_least_if_the_run_without_a_limit_failed_too(oomph):
    code = ATTENTION.replace(
        ".mean().backward()", ".mean().backward(); raise RuntimeError('a bug')"
    )
    assert code != ATTENTION
    run = oomph(code, "--memory", "2GiB")
    assert "these figures are lower bounds" in " ".join(run.out.split())


def test_inference_with_a_graph_is_the_cause(oomph):
    run = oomph(INFERENCE, "--memory", "6GiB")
    assert run.status == 3
    assert run.json["cause"]["id"] == "missing_no_grad"
    assert run.json["fixes"][0]["advice"] == "no_grad"
    levers = {fix.get("lever") for fix in run.json["fixes"]}
    assert not levers & {"micro_batch", "checkpoint"}, levers


def test_a_teacher_with_a_graph_is_the_cause(oomph, tmp_path):
    run = oomph(TEACHER, "--memory", "2GiB")
    assert run.json["cause"]["id"] == "missing_no_grad", run.json["cause"]
    lines = (tmp_path / "script.py").read_text().splitlines()
    (called,) = (number for number, line in enumerate(lines, 1) if "teacher(x)" in line)
    # Neither the line of the model's own `forward`, nor that of `main()`.
    assert "a teacher" in run.json["cause"]["verdict"]
    assert f"script.py:{called} in main that no backward pass uses" in run.json["cause"]["verdict"]


def test_outputs_of_a_workspaces_size_are_no_workspace(oomph):
    run = oomph(KEPT, "--memory", "2GiB")
    assert run.json["cause"]["id"] == "tensors_kept"
    assert run.json["by_category"].get("workspace", 0) < 128 << 20


HOOKS = """
    import torch
    from torch import nn

    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
    ).cuda()
    seen = []
    for block in model:
        block.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(4096, 512, device="cuda")).mean().backward()
        optimizer.step()
"""

OPTIMIZERS = """
    import torch
    from torch import nn

    def train():
        model = nn.Sequential(*[nn.Linear(1024, 1024, device="cuda") for _ in range(24)])
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer

    kept = [train() for _ in range(8)]
"""

FILES = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512 + i), nn.Linear(512 + i, 512)) for i in range(8)])
    torch.save(model.state_dict(), "run.pt")
    model.cuda().eval()
    runs = [torch.load("run.pt", map_location="cuda") for _ in range(20)]
    model.load_state_dict({name: sum(run[name] for run in runs) / 20 for name in runs[0]})
"""

EVALUATED = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False) if self.training else self.body(x)

    model = nn.Sequential(*[Block() for _ in range(12)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(32768, 512, device="cuda")).mean().backward()
        optimizer.step()
        if step == 1:
            model.eval()
"""


def test_checkpointing_that_evaluation_switched_off_is_named(oomph):
    run = oomph(EVALUATED, "--memory", "1.8GiB")
    assert run.json["cause"]["id"] == "mitigation_inert", run.json["cause"]
    assert any(fix.get("advice") == "train_mode" for fix in run.json["fixes"])


WRITTEN_OUT = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(50000, 64), nn.Linear(64, 64), nn.Linear(64, 50000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        ids = torch.randint(0, 50000, (2048,), device="cuda")
        loss = -torch.log_softmax(model(ids), -1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

SIMULATION = """
    import torch

    state, film = torch.rand(1024, 1024, device="cuda"), []
    for _ in range(400):
        near = state.roll(1, 0) + state.roll(-1, 0)
        state = (near * near).tanh() * 0.5 + state
        film.append(state)
"""

STAGES = """
    import torch
    from torch import nn

    def train(outputs):
        model = nn.Sequential(nn.Linear(2048, 2048, device="cuda"), nn.Linear(2048, 2048, device="cuda"), nn.Linear(2048, outputs, device="cuda"))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(8, 2048, device="cuda")).mean().backward()
            optimizer.step()
        return model, optimizer

    first = train(2048)
    second = train(1)
"""

SHORT_SETS = """
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(96, 6, 192, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6000, 32, 96, device="cuda")).mean().backward()
        optimizer.step()
"""

EXPERTS = """
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(512, 40, device="cuda")
            self.all = nn.ModuleList(nn.Linear(512, 512, device="cuda") for _ in range(40))

        def forward(self, x):
            return self.gate(x).amax(-1, keepdim=True) * self.all[0](x)

    model = nn.Sequential(*[Experts() for _ in range(6)])
    with torch.no_grad():
        model(torch.randn(2, 512, device="cuda"))
"""

PROBABILITIES = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(50000, 64), nn.Linear(64, 50000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        ids = torch.randint(0, 50000, (2048,), device="cuda")
        loss = -(model(ids).softmax(-1).gather(1, ids[:, None]) + 1e-9).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

BY_HAND = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(8)])
    parameters = list(model.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for _ in range(3):
        model(torch.randn(8, 2048, device="cuda")).mean().backward()
        with torch.no_grad():
            for p, m, v in zip(parameters, first, second):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.01)
                p.grad = None
"""

OFFLOADED_LOSS = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        out = model(torch.randn(32768, 512, device="cuda"))
        with torch.autograd.graph.save_on_cpu():
            loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

CHECKPOINTED_HEAD = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    body = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).cuda()
    head = nn.Sequential(nn.Linear(512, 8), nn.GELU(), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    for _ in range(3):
        out = checkpoint(head, body(torch.randn(32768, 512, device="cuda")), use_reentrant=False)
        optimizer.zero_grad()
        out.mean().backward()
        optimizer.step()
"""

SCHEDULERS = """
    import torch
    from torch import nn

    kept = []
    for _ in range(8):
        model = nn.Sequential(nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 3000), nn.ReLU(), nn.Linear(3000, 1))
        optimizer = torch.optim.Adam(model.cuda().parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            schedule.step()
        kept.append(schedule)
        del model, optimizer, schedule
"""

ADAGRAD = """
    import torch
    from torch import nn

    model = nn.EmbeddingBag(1_000_000, 128, sparse=True, device="cuda")
    optimizer = torch.optim.Adagrad(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(1_000_000, (64, 4), device="cuda")).mean().backward()
        optimizer.step()
"""

SMALL_FILE = """
    import io

    import torch
    from torch import nn

    def layers():
        return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)])

    file = io.BytesIO()
    torch.save(layers().state_dict(), file)
    file.seek(0)
    weights = torch.load(file, map_location="cuda")
    model = layers()
    model.load_state_dict(weights)
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 2048, device="cuda")).mean().backward()
        optimizer.step()
"""

RECURRENT = """
    import torch
    from torch import nn

    model = nn.LSTM(128, 256, 2, bidirectional=True, batch_first=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(512, 200, 128, device="cuda"))[0].mean().backward()
        optimizer.step()
"""


NAMED_STATE = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(8)])
    mean, square = {}, {}
    for _ in range(3):
        model(torch.randn(8, 2048, device="cuda")).mean().backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                mean[name] = 0.1 * p.grad + 0.9 * mean.get(name, 0)
                square[name] = 0.01 * p.grad.square() + 0.99 * square.get(name, 0)
                p -= 0.001 * mean[name] / (square[name].sqrt() + 1e-8)
                p.grad = None
"""

EXPONENTIALS = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = torch.exp(q @ k.transpose(-2, -1) / 8)
            return (weights / weights.sum(-1, keepdim=True)) @ v

    model = nn.Sequential(*[Attention() for _ in range(4)]).cuda()
    for _ in range(2):
        model(torch.randn(32, 1024, 64, device="cuda")).mean().backward()
"""

DENSE_GRAPH = """
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            x = self.project(x)
            scores = nn.functional.leaky_relu(self.a(x) + self.b(x).T)
            return scores.softmax(-1) @ x

    model = nn.Sequential(*[Layer() for _ in range(3)]).cuda()
    for _ in range(2):
        model(torch.randn(6000, 64, device="cuda")).mean().backward()
"""

BUFFERS = """
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(256, 768)
            for name in ("keys", "values"):
                self.register_buffer(name, torch.zeros(16, 4096, 256), persistent=False)

        def forward(self, x, at):
            q, k, v = self.project(x).chunk(3, -1)
            self.keys[:, at : at + 1], self.values[:, at : at + 1] = k, v
            past = self.keys[:, : at + 1], self.values[:, : at + 1]
            return nn.functional.scaled_dot_product_attention(q, *past)

    class Reader(nn.ModuleList):
        def forward(self, x, at):
            for layer in self:
                x = layer(x, at)
            return x

    model = Reader(Layer() for _ in range(8)).cuda()
    with torch.inference_mode():
        for token in range(4):
            model(torch.randn(16, 1, 256, device="cuda"), token)
"""

DATA = """
    import torch
    from torch import nn

    photos = torch.rand(4000, 3, 128, 128, device="cuda")
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 63 * 63, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for at in range(0, 128, 32):
        optimizer.zero_grad()
        model(photos[torch.arange(at, at + 32)]).mean().backward()
        optimizer.step()
"""

UNROLLED = """
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.GRUCell(128, 512), nn.Linear(512, 40)

        def forward(self, x):
            state, found = x.new_zeros(len(x), 512), []
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
                found.append(self.out(state))
            return torch.stack(found, 1)

    model = Reader().cuda()
    for _ in range(2):
        model(torch.randn(512, 80, 128, device="cuda")).mean().backward()
"""

SUMMED = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        total = 0
        for part in range(8):
            total = total + model(torch.randn(4096, 1024, device="cuda")).mean() / 8
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
"""

SWITCHED_ON = """
    import torch
    from torch import nn

    class Block(nn.Module):
        use_checkpoint = False

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))

        def forward(self, x):
            return x + self.body(x)

    model = nn.Sequential(*[Block() for _ in range(12)]).cuda()
    for block in model:
        block.use_checkpoint = True
    for _ in range(2):
        model(torch.randn(8192, 512, device="cuda")).mean().backward()
"""

MATH_KERNEL = """
    import torch
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = nn.Sequential(*[nn.TransformerEncoderLayer(64, 2, 128, batch_first=True) for _ in range(4)]).cuda()
    for _ in range(2):
        with sdpa_kernel(SDPBackend.MATH):
            model(torch.randn(16, 1024, 64, device="cuda")).mean().backward()
"""

FROZEN = """
    import torch
    from torch import nn

    body = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)])
    body.requires_grad = False
    model = nn.Sequential(body, nn.Linear(512, 10)).cuda()
    for _ in range(2):
        model(torch.randn(16384, 512, device="cuda")).mean().backward()
"""

# What a first loop trained is held by nothing that says so, and nothing uses it any more.
TWO_STAGES = """
    import torch
    from torch import nn

    def train(model, draw, steps):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            model(draw()).mean().backward()
            optimizer.step()
        return optimizer

    layers = [nn.Linear(2048, 2048, device="cuda") for _ in range(6)]
    first = train(nn.Sequential(*layers[:4]), lambda: torch.randn(8, 2048, device="cuda"), 2)
    both = train(nn.Sequential(*layers[4:]), lambda: torch.randn(2048, 2048, device="cuda"), 3)
"""

ASCENDING = """
    import torch
    from torch import nn

    encoder, library = nn.Embedding(5000, 256).cuda(), []
    with torch.inference_mode():
        for length in (160, 180, 202, 228, 256, 288, 324, 364):
            found = encoder(torch.randint(0, 5000, (1000, length), device="cuda"))
            kept = found[:, :100].cpu()
            del found
            library.append(kept.cuda())
"""


METRIC = """
    import torch
    from torch import nn

    def dice(scores, truth):
        p = scores.softmax(1)
        return (p * truth).sum() / (p.square() + truth).sum()

    model, curve = nn.Conv2d(3, 16, 3, padding=1).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        x, truth = torch.randn(8, 3, 256, 256, device="cuda"), torch.rand(8, 16, 256, 256, device="cuda")
        scores = model(x)
        optimizer.zero_grad()
        scores.mean().backward()
        optimizer.step()
        curve.append(dice(scores, truth))
"""

VALIDATED = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).mean().backward()
        optimizer.step()
    pictures = []
    with torch.no_grad():
        for _ in range(30):
            x = torch.randn(32768, 256, device="cuda")
            pictures.append(model(x).abs().log1p())
"""

FUNCTIONS = """
    import torch
    from torch.func import grad

    weights = {name: torch.randn(2048, 2048, device="cuda") / 45 for name in "abcdef"}

    def loss(weights, x):
        for w in weights.values():
            x = (x @ w).tanh()
        return x.mean()

    state = None
    for _ in range(3):
        grads = grad(loss)(weights, torch.randn(64, 2048, device="cuda"))
        state = state or [{name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(3)]
        for name, w in weights.items():
            for part in state:
                part[name].mul_(0.9).add_(grads[name], alpha=0.1)
            w.sub_(state[0][name])
"""

SCATTERED = """
    import torch

    album = {n: torch.rand(3, 832, 832, device="cuda") for n in range(100)}
    for n in range(1, 100, 2):
        del album[n]
    torch.nn.Conv2d(3, 4, 16, stride=16).cuda()(torch.rand(1, 3, 5824, 5824, device="cuda"))
"""

BOUNDED = """
    import random

    import torch
    from torch import nn

    random.seed(5)
    extractor = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()).cuda().eval()
    maps, used = {}, 0
    with torch.inference_mode():
        for side in (150, 174, 196):
            for number in range(95):
                found = extractor(torch.rand(1, 3, side, side, device="cuda"))[0]
                while used + found.nbytes > 500 << 20:
                    used -= maps.pop(random.choice(list(maps))).nbytes
                maps[side, number] = found
                used += found.nbytes
"""


GIVEN = """
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 768) for _ in range(4))

        def forward(self, x, cache, at):
            for layer, (keys, values) in zip(self.layers, cache):
                q, k, v = layer(x).chunk(3, -1)
                keys[:, at : at + 1], values[:, at : at + 1] = k, v
                x = nn.functional.scaled_dot_product_attention(q, keys[:, : at + 1], values[:, : at + 1])
            return x

    model = Reader().cuda()
    cache = [[torch.zeros(16, 8192, 256, device="cuda") for _ in range(2)] for _ in model.layers]
    with torch.inference_mode():
        for token in range(4):
            model(torch.randn(16, 1, 256, device="cuda"), cache=cache, at=token)
"""

COMPARED = """
    import torch
    from torch import nn

    class Wide(nn.Linear):
        pass

    class Deep(nn.Sequential):
        pass

    class Branched(nn.ModuleList):
        def forward(self, x):
            return sum(part(x) for part in self)

    shelf = []
    for kind in (
        lambda: Wide(4096, 12000),
        lambda: Deep(*[nn.Linear(4096, 4096) for _ in range(3)]),
        lambda: Branched(nn.Linear(4096, 6000) for _ in range(2)),
    ):
        model = kind().cuda().eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(4, 4096, device="cuda"))
        shelf.append(model)
"""


# Steps of an attack that are differentiable by mistake: most of what stays, backward passes made.
DIFFERENTIATED = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(16384, 512, device="cuda").requires_grad_()
        for _ in range(8):
            (gradient,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
            x = x + 0.1 * gradient
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""

# Checkpointing recomputes for a gradient that is differentiated: all of it stays.
FORCES = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 256)) for _ in range(8)
    ).cuda()
    optimizer = torch.optim.SGD(blocks.parameters(), 0.1)
    for _ in range(2):
        places = x = torch.randn(8192, 256, device="cuda", requires_grad=True)
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        (force,) = torch.autograd.grad(x.sum(), places, create_graph=True)
        optimizer.zero_grad()
        force.square().mean().backward()
        optimizer.step()
"""

# A column of predictions and a row of targets.
COLUMN_AND_ROW = """
    import torch

    model = torch.nn.Linear(16, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        x, y = torch.randn(16000, 16, device="cuda"), torch.randn(16000, device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

PLAIN_WEIGHTS = """
    import torch

    weights = [torch.randn(2048, 2048, device="cuda", requires_grad=True) for _ in range(24)]
    for _ in range(3):
        x = torch.randn(64, 2048, device="cuda")
        for w in weights:
            x = torch.tanh(x @ w)
        gradients = torch.autograd.grad(x.mean(), weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients):
                w.sub_(gradient, alpha=1e-3)
"""

# One block of many is checkpointed, in every pass.
ONE_OF_MANY = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(12))

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                x = torch.tanh(checkpoint(block, x, use_reentrant=False) if i == 11 else block(x))
            return x

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16384, 1024, device="cuda")).mean().backward()
        optimizer.step()
"""


# Pages of keys and values, of which nobody takes those back that belong to conversations that are over.
PAGES = """
    import torch
    from torch import nn

    layer = nn.Linear(1024, 3072, device="cuda", dtype=torch.float16)
    conversations = []
    with torch.inference_mode():
        for _ in range(12):
            pages = []
            conversations.append(pages)
            for _ in range(12):
                x = torch.randn(256, 1024, device="cuda", dtype=torch.float16)
                q, k, v = layer(x).view(256, 3, 16, 64).permute(1, 2, 0, 3)
                page = torch.zeros(2, 16, 256, 64, device="cuda", dtype=torch.float16)
                page[0], page[1] = k, v
                pages.append(page)
                keys, values = (torch.cat([p[i] for p in pages], 1) for i in range(2))
                nn.functional.scaled_dot_product_attention(q[None], keys[None], values[None])
"""

# An evaluation in functions alone, after training.
FUNCTIONS_EVALUATE = """
    import torch

    weights = [torch.randn(512, 512, device="cuda", requires_grad=True) for _ in range(8)]
    optimizer = torch.optim.SGD(weights, 0.1)

    def predict(x):
        for w in weights:
            x = torch.relu(x @ w).sin()
        return x

    for _ in range(3):
        optimizer.zero_grad()
        predict(torch.randn(256, 512, device="cuda")).mean().backward()
        optimizer.step()
    for _ in range(4):
        print(predict(torch.randn(16384, 512, device="cuda")).mean().item())
"""


OLDER_OPTIMIZERS = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
    schedules = []
    for cycle in range(12):
        optimizer = torch.optim.Adam(model.parameters())
        schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 2))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 1024, device="cuda")).mean().backward()
            optimizer.step()
"""

JOINED_OUTSIDE = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    layers = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(16 * n), nn.ReLU(), nn.Conv2d(16 * n, 16, 3, padding=1)) for n in range(1, 21)).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)
    for _ in range(2):
        features = [torch.randn(8, 16, 64, 64, device="cuda")]
        for layer in layers:
            features.append(checkpoint(layer, torch.cat(features, 1), use_reentrant=False))
        optimizer.zero_grad()
        features[-1].mean().backward()
        optimizer.step()
"""

NEVER_CHECKPOINTED = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self, thrifty):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(8))
            self.thrifty = thrifty

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.thrifty and x.requires_grad else layer(x)
            return x

    model = Net(thrifty=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8192, 256, device="cuda")).mean().backward()
        optimizer.step()
"""

TWO_IN_A_ROW = """
    import torch

    place, speed, film = torch.randn(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda"), []
    for _ in range(60):
        speed -= (place * place + 0.1).sqrt() * place * 0.01
        place += speed * 0.01
        film.append((place.clone(), speed.clone()))
"""

HISTORY = """
    import torch
    from torch import nn

    image = torch.rand(1, 3, 700, 700, device="cuda", requires_grad=True)
    kernel = torch.randn(3, 3, 3, 3, device="cuda")
    optimizer = torch.optim.LBFGS([image], history_size=40, max_iter=30)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.conv2d(image, kernel).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
"""

MEMBERS = """
    import torch
    from torch.func import functional_call, grad, vmap

    member = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).to("meta")
    weights = {name: torch.randn(100, *p.shape, device="cuda") for name, p in member.named_parameters()}
    slopes = vmap(grad(lambda weights, x: functional_call(member, weights, (x,)).mean()))
    for _ in range(3):
        for name, slope in slopes(weights, torch.randn(100, 4, 512, device="cuda")).items():
            weights[name].sub_(slope, alpha=0.01)
"""

SECOND_PASS = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    moved = 0
    for _ in range(20):
        x = torch.randn(2048, 64, device="cuda")
        before = model(x).mean()
        optimizer.zero_grad()
        before.backward()
        optimizer.step()
        moved += model(x).mean() - before.detach()
"""

WITHOUT_OPTIMIZER = """
    import torch
    from torch import nn

    cell, state = nn.GRUCell(64, 512).cuda(), None
    for _ in range(40):
        state = cell(torch.randn(1024, 64, device="cuda"), state)
        cell.zero_grad()
        state.square().mean().backward(retain_graph=True)
        with torch.no_grad():
            for p in cell.parameters():
                p.data.sub_(p.grad, alpha=0.01)
"""

ADDED_BY_INDEX = """
    import torch
    from torch import nn

    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6)).cuda()
    optimizer = torch.optim.Adam(layers.parameters())
    for n in [800, 1000, 900, 1100, 950, 1000, 40000, 900]:
        x, edges = torch.randn(n, 64, device="cuda"), torch.randint(n, (2, 8 * n), device="cuda")
        for layer in layers:
            messages = torch.relu(layer(x))[edges[0]]
            x = torch.zeros_like(x).index_add_(0, edges[1], messages) + x
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()
"""

SCALED_IN_VAIN = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
    for _ in range(2):
        loss = model(torch.randn(32768, 512, device="cuda")).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

FILLED = """
    import torch
    from torch import nn

    layers = nn.ModuleList(nn.Linear(512, 1536) for _ in range(4)).cuda()
    keys, values = ([torch.zeros(32, 8, 1024, 64, device="cuda") for _ in layers] for _ in range(2))
    with torch.no_grad():
        for t in range(6):
            x = torch.randn(32, 512, device="cuda")
            for layer, k, v in zip(layers, keys, values):
                q, k[:, :, t], v[:, :, t] = layer(x).view(32, 3, 8, 64).unbind(1)
                x = x + nn.functional.scaled_dot_product_attention(q[:, :, None], k[:, :, : t + 1], v[:, :, : t + 1]).reshape(32, 512)
"""

TREE = """
    import torch
    from torch import nn

    model, states = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).cuda(), []
    with torch.no_grad():
        states.append(torch.randn(32, 64, 19, 19, device="cuda"))
        for n in range(60):
            states.append(model(states[n // 2]))
"""

# The copy of the weights that waits for the second pass is replaced in each step.
TWICE_A_STEP = """
    import torch
    from torch import nn

    class SharpnessAware(torch.optim.SGD):
        @torch.no_grad()
        def climb(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["before"] = p.clone()
                    p.add_(p.grad, alpha=0.05)
            self.zero_grad()

        @torch.no_grad()
        def descend(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.copy_(self.state[p]["before"])
            self.step()
            self.zero_grad()

    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = SharpnessAware(model.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(16, 2048, device="cuda")
        model(x).mean().backward()
        optimizer.climb()
        model(x).mean().backward()
        optimizer.descend()
"""

RETAINED = """
    import torch
    from torch import nn

    cell = nn.GRUCell(64, 64).cuda()
    optimizer = torch.optim.SGD(cell.parameters(), 0.1)
    for _ in range(3):
        state = torch.zeros(20000, 64, device="cuda")
        for window in range(8):
            total = 0
            for _ in range(3):
                state = cell(torch.randn(20000, 64, device="cuda"), state)
                total = total + state.square().mean()
            total.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
"""

OWN_FUNCTION = """
    import torch
    from torch import nn

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, block, x, *weights):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = block(ctx.x)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, dy):
            torch.autograd.backward(ctx.y, dy)
            return None, ctx.x.grad, *(None for _ in range(4))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x):
            return x + self.narrow(nn.functional.gelu(self.wide(x)))

    stem = nn.Linear(64, 64).cuda()
    blocks = nn.ModuleList(Block() for _ in range(12)).cuda()
    optimizer = torch.optim.SGD([*stem.parameters(), *blocks.parameters()], 0.1)
    for _ in range(3):
        x = stem(torch.randn(16384, 64, device="cuda"))
        for block in blocks:
            x = Recompute.apply(block, x, *block.parameters())
        x.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

PACKED_IN_VAIN = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x):
            return x + self.narrow(nn.functional.gelu(self.wide(x)))

    model = nn.Sequential(*[Block() for _ in range(12)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t.device, t), lambda packed: packed[1])
    for _ in range(3):
        with hooks:
            loss = model(torch.randn(16384, 64, device="cuda")).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

LOSS_BY_HAND = """
    import torch
    from torch import nn

    class Shop(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.next = nn.Embedding(60000, 32), nn.GRU(32, 32, batch_first=True)

        def forward(self, x):
            return self.next(self.embed(x))[0] @ self.embed.weight.T

    model = Shop().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        bought = torch.randint(60000, (64, 21), device="cuda")
        scores = model(bought[:, :-1])
        chosen = scores.gather(-1, bought[:, 1:, None]).squeeze(-1)
        loss = (scores.exp().sum(-1).log() - chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# Nothing but the running loop refers to the reader: it is gone when the error has ended the script.
READER = """
    import torch
    from torch import nn

    class Reader:
        def __init__(self):
            self.read = []

        def __iter__(self):
            while True:
                self.read.append(torch.randn(256, 3, 64, 64, device="cuda"))
                yield self.read[-1]

    model = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _, batch in zip(range(100), Reader()):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

# The last layer's weights of attention stay on the GPU for each batch.
LOOKS = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
            return weights @ v, weights

    layers = nn.ModuleList(Attention() for _ in range(3)).cuda().eval()
    looks = []
    with torch.inference_mode():
        for _ in range(30):
            x = torch.randn(16, 512, 64, device="cuda")
            for layer in layers:
                x, weights = layer(x)
            looks.append(weights)
"""

# One wide layer is called for each letter: its gradients are summed before the parameter has them.
LETTERS = """
    import torch
    from torch import nn

    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates, self.out = nn.Linear(6144, 6144), nn.Linear(6144, 10)

        def forward(self, x):
            h = torch.zeros_like(x[0])
            for letter in x:
                h = torch.tanh(self.gates(letter + h))
            return self.out(h)

    model = Letters().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4, 6144, device="cuda")).mean().backward()
        optimizer.step()
"""

# Queries in groups and a mask leave the math kernel alone, whose scores come after the cache.
ROOM_AHEAD = """
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(256, 256), nn.Linear(256, 256)

        def forward(self, x, cache, mask):
            q = self.q(x).unflatten(2, (8, 32)).transpose(1, 2)
            k, v = self.kv(x).unflatten(2, (2, 4, 32)).permute(2, 0, 3, 1, 4)
            cache[0][:, :, : k.shape[2]], cache[1][:, :, : k.shape[2]] = k, v
            y = nn.functional.scaled_dot_product_attention(q, *cache, attn_mask=mask, enable_gqa=True)
            return x + y.transpose(1, 2).flatten(2)

    layers = nn.ModuleList(Layer() for _ in range(6)).cuda().eval()
    with torch.inference_mode():
        caches = [[torch.zeros(8, 4, 8192, 32, device="cuda") for _ in "kv"] for _ in layers]
        x = torch.randn(8, 32, 256, device="cuda")
        mask = torch.ones(32, 8192, dtype=torch.bool, device="cuda").tril()
        for layer, cache in zip(layers, caches):
            x = layer(x, cache, mask)
"""

# Keys and values of all layers in one tensor, which the model is given.
ONE_STORE = """
    import torch
    from torch import nn

    class Teller(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(256, 256), nn.ModuleList(nn.Linear(256, 512) for _ in range(6))

        def forward(self, x, store, at):
            for part, kv in zip(store, self.kv):
                part[:, :, :, at] = kv(x).view(-1, 2, 8, 32).transpose(0, 1)
                k, v = part[:, :, :, : at + 1]
                q = self.q(x).view(-1, 8, 1, 32)
                x = x + nn.functional.scaled_dot_product_attention(q, k, v).flatten(1)
            return x

    teller = Teller().cuda().eval()
    store = torch.zeros(6, 2, 8, 8, 6000, 32, device="cuda")
    beside = torch.zeros(1 << 26, device="cuda")
    with torch.inference_mode():
        x = torch.randn(8, 256, device="cuda")
        for at in range(10):
            x = teller(x, store, at)
"""

# All parts are there from the start, and each has its turn.
IN_TURN = """
    import torch
    from torch import nn

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("within", torch.zeros(5000, 5000, device="cuda"))

        def forward(self, series):
            state = torch.zeros_like(series[0])
            states = []
            for x in series:
                state = torch.tanh(x + state @ self.within)
                states.append(state)
            return torch.stack(states)

    parts = nn.ModuleList(Part() for _ in range(5))
    with torch.inference_mode():
        series = torch.randn(20, 4, 5000, device="cuda")
        for part in parts:
            series = part(series)
"""

# The graphs of rewards are kept before anything trains.
REWARDS = """
    import torch
    from torch import nn

    critic = nn.Sequential(nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 1)).cuda()
    rewards = []
    for _ in range(40):
        rewards.append(critic(torch.randn(2048, 64, device="cuda")))
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    for reward in rewards:
        loss = (critic(torch.randn(2048, 64, device="cuda")) - reward.detach()).square().mean()
        loss.backward()
        optimizer.step()
"""

# Every pair of a letter and a frame has a vector, and then a score.
PAIRS = """
    import torch
    from torch import nn

    class Additive(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, text, audio):
            pairs = torch.tanh(self.q(text)[:, :, None] + self.k(audio)[:, None])
            return self.v(pairs).squeeze(-1).softmax(-1) @ audio

    model = Additive().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        text, audio = torch.randn(8, 200, 64, device="cuda"), torch.randn(8, 600, 64, device="cuda")
        model(text, audio).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("script", "memory", "cause"),
    [
        pytest.param(
            TWICE,
            "1.2GiB",
            "stale_model",
            id="a_model_that_was_replaced_is_not_one_that_is_too_large",
        ),
        pytest.param(HOOKS, "2GiB", "tensors_kept", id="outputs_that_hooks_collect_are_no_graph"),
        pytest.param(
            OPTIMIZERS,
            "1.2GiB",
            "stale_model",
            id="a_model_that_only_its_optimizer_keeps_is_a_stale_one",
        ),
        pytest.param(
            FILES, "0.35GiB", "checkpoint_on_gpu", id="files_that_are_read_to_the_gpu_are_no_models"
        ),
        pytest.param(WRITTEN_OUT, "1.1GiB", "logits", id="a_loss_that_is_written_out_keeps_logits"),
        pytest.param(SIMULATION, "1GiB", "tensors_kept", id="states_of_a_simulation_are_no_model"),
        pytest.param(
            STAGES, "0.45GiB", "stale_model", id="the_model_of_an_earlier_stage_is_a_stale_one"
        ),
        pytest.param(
            SHORT_SETS, "2GiB", "batch_too_large", id="fused_attention_projects_but_keeps_no_scores"
        ),
        pytest.param(
            EXPERTS, "0.3GiB", "model_too_large", id="layers_of_one_model_are_no_copies_of_it"
        ),
        pytest.param(
            PROBABILITIES, "1.1GiB", "logits", id="probabilities_over_a_vocabulary_are_logits"
        ),
        pytest.param(
            BY_HAND, "0.55GiB", "optimizer_state", id="state_that_is_written_by_hand_is_state"
        ),
        pytest.param(OFFLOADED_LOSS, "1GiB", "mitigation_inert", id="only_the_loss_is_offloaded"),
        pytest.param(
            CHECKPOINTED_HEAD, "1GiB", "mitigation_inert", id="only_the_head_is_checkpointed"
        ),
        pytest.param(
            SCHEDULERS, "0.5GiB", "stale_model", id="models_that_stand_where_others_stood"
        ),
        pytest.param(
            ADAGRAD, "0.9GiB", "optimizer_state", id="state_that_is_made_with_the_optimizer"
        ),
        pytest.param(
            SMALL_FILE,
            "0.85GiB",
            "checkpoint_on_gpu",
            id="weights_from_a_file_that_are_the_difference",
        ),
        pytest.param(
            RECURRENT, "1.5GiB", "batch_too_large", id="a_workspace_that_is_not_the_difference"
        ),
        pytest.param(
            NAMED_STATE, "0.6GiB", "optimizer_state", id="state_that_is_written_by_hand_for_names"
        ),
        pytest.param(
            EXPONENTIALS, "1.2GiB", "attention_scores", id="attention_that_takes_no_softmax"
        ),
        pytest.param(
            DENSE_GRAPH, "0.5GiB", "attention_scores", id="attention_over_a_graph_is_no_loss"
        ),
        pytest.param(BUFFERS, "0.8GiB", "kv_cache", id="a_cache_in_buffers_is_no_model"),
        pytest.param(DATA, "0.9GiB", "tensors_kept", id="data_that_stay_on_the_gpu_are_no_batch"),
        pytest.param(
            UNROLLED, "0.7GiB", "batch_too_large", id="a_loop_with_one_loss_keeps_one_graph"
        ),
        pytest.param(
            SUMMED,
            "1.2GiB",
            "graph_retained",
            id="parts_of_a_step_that_are_summed_keep_their_graphs",
        ),
        pytest.param(
            SWITCHED_ON,
            "1GiB",
            "mitigation_inert",
            id="a_switch_for_checkpointing_that_nobody_heeds",
        ),
        pytest.param(
            TWO_STAGES, "0.4GiB", "stale_model", id="weights_that_nothing_reads_any_more_are_stale"
        ),
        pytest.param(
            ASCENDING,
            "1.28GiB",
            "tensors_kept",
            id="what_is_collected_between_holes_is_the_cause_if_it_is_enough",
        ),
        pytest.param(
            DIFFERENTIATED, "0.8GiB", "graph_retained", id="gradients_with_a_graph_are_kept_by_it"
        ),
        pytest.param(
            FORCES,
            "0.7GiB",
            "mitigation_inert",
            id="gradients_with_a_graph_keep_what_is_recomputed",
        ),
        pytest.param(
            COLUMN_AND_ROW, "1.5GiB", "huge_request", id="a_column_that_meets_a_row_is_a_square"
        ),
        pytest.param(PAGES, "0.3GiB", "kv_cache", id="pages_that_attention_reads_are_a_cache"),
        pytest.param(
            FUNCTIONS_EVALUATE,
            "0.5GiB",
            "missing_no_grad",
            id="functions_have_graphs_that_nobody_needs",
        ),
        pytest.param(PLAIN_WEIGHTS, "0.7GiB", "model_too_large", id="weights_need_no_module"),
        pytest.param(
            OLDER_OPTIMIZERS, "0.4GiB", "stale_model", id="state_of_optimizers_that_schedules_hold"
        ),
        pytest.param(
            JOINED_OUTSIDE, "0.5GiB", "mitigation_inert", id="what_checkpoints_are_given_is_kept"
        ),
        pytest.param(
            NEVER_CHECKPOINTED,
            "0.5GiB",
            "mitigation_inert",
            id="checkpointing_that_no_pass_comes_to",
        ),
        pytest.param(
            TWO_IN_A_ROW, "0.5GiB", "tensors_kept", id="a_line_of_a_loop_keeps_two_results"
        ),
        pytest.param(HISTORY, "0.35GiB", "optimizer_state", id="a_history_of_gradients_is_state"),
        pytest.param(MEMBERS, "0.5GiB", "model_too_large", id="weights_that_are_stacked_by_vmap"),
        pytest.param(
            SECOND_PASS, "0.3GiB", "graph_retained", id="a_graph_of_training_that_is_summed"
        ),
        pytest.param(
            WITHOUT_OPTIMIZER, "0.4GiB", "graph_retained", id="steps_without_an_optimizer"
        ),
        pytest.param(
            ADDED_BY_INDEX, "0.7GiB", "input_spike", id="what_an_operator_keeps_unread_is_used"
        ),
        pytest.param(SCALED_IN_VAIN, "0.7GiB", "mitigation_inert", id="a_scaler_without_autocast"),
        pytest.param(FILLED, "0.45GiB", "kv_cache", id="a_cache_in_lists_that_is_filled_in_place"),
        pytest.param(TREE, "0.2GiB", "tensors_kept", id="results_in_modules_alone"),
        pytest.param(
            TWICE_A_STEP, "0.45GiB", "optimizer_state", id="what_a_step_leaves_for_the_next_is_used"
        ),
        pytest.param(
            RETAINED,
            "0.5GiB",
            "graph_retained",
            id="graphs_that_backward_passes_keep_within_a_step",
        ),
        pytest.param(
            OWN_FUNCTION,
            "0.5GiB",
            "mitigation_inert",
            id="a_function_of_its_own_that_recomputes_nothing",
        ),
        pytest.param(
            PACKED_IN_VAIN, "0.5GiB", "mitigation_inert", id="hooks_that_pack_nothing_away"
        ),
        pytest.param(LOSS_BY_HAND, "0.85GiB", "logits", id="a_loss_of_exponentials_and_sums_alone"),
        pytest.param(READER, "0.4GiB", "tensors_kept", id="what_only_a_running_loop_holds"),
        pytest.param(LOOKS, "0.4GiB", "tensors_kept", id="scores_of_earlier_passes_are_kept"),
        pytest.param(LETTERS, "0.5GiB", "model_too_large", id="gradients_that_are_summed"),
        pytest.param(ROOM_AHEAD, "0.5GiB", "kv_cache", id="a_cache_that_was_there_before_scores"),
        pytest.param(ONE_STORE, "0.9GiB", "kv_cache", id="a_cache_of_all_layers_in_one_tensor"),
        pytest.param(IN_TURN, "0.45GiB", "model_too_large", id="parts_that_have_had_their_turn"),
        pytest.param(REWARDS, "0.6GiB", "missing_no_grad", id="graphs_kept_before_training"),
        pytest.param(PAIRS, "0.4GiB", "attention_scores", id="attention_of_vectors_for_pairs"),
    ],
)
def test_the_first_cause(oomph, script, memory, cause):
    run = oomph(script, "--memory", memory)
    assert run.json["cause"]["id"] == cause, run.json["cause"]


def test_what_is_checkpointed_in_this_pass_was_not_switched_off(oomph):
    run = oomph(ONE_OF_MANY, "--memory", "0.8GiB")
    assert "eval" not in run.json["cause"]["verdict"], run.json["cause"]


def test_gradients_that_nobody_reads_need_no_graph(oomph):
    # The critic's backward pass goes through the generator, for gradients that are cleared before anybody reads them.
    place = Path(__file__).parents[2] / "bench" / "causes" / "jobs" / "critic_sees_more.py"
    run = oomph(place.read_text(), "--memory", "1.5GiB")
    assert run.json["cause"]["id"] == "missing_no_grad", run.json["cause"]


def test_workspaces_that_are_gone_again_can_be_why(oomph):
    # None is alive when memory runs out; without them a replay serves every request.
    place = Path(__file__).parents[2] / "bench" / "causes" / "jobs" / "fastest_by_trial.py"
    run = oomph(place.read_text().replace("count=8", "count=4"), "--memory", "1.6GiB")
    assert run.json["cause"]["id"] == "workspace", run.json["cause"]


def test_workspaces_of_each_stream_that_pile_up_are_why(oomph):
    # cuBLAS keeps 32 MiB for each stream that multiplies, and every step works on another one.
    place = Path(__file__).parents[2] / "bench" / "causes" / "jobs" / "stations_in_parallel.py"
    run = oomph(place.read_text(), "--memory", "1.3GiB", gpu="h100")
    assert run.json["cause"]["id"] == "workspace", run.json["cause"]


def test_attention_that_calls_for_a_fused_kernel_is_not_told_to(oomph):
    run = oomph(MATH_KERNEL, "--memory", "1GiB")
    assert run.json["cause"]["id"] == "attention_scores", run.json["cause"]
    (fix, *_) = run.json["fixes"]
    assert fix["advice"] == "fused_attention" and fix["enough"] is True


EIGENVECTORS = """
    import torch

    faces = torch.rand(2000, 6000, device="cuda")
    torch.linalg.eigh(faces.T @ faces)
"""


def test_the_workspace_of_a_factorization_is_not_that_of_a_product(oomph):
    run = oomph(EIGENVECTORS, "--memory", "0.7GiB")
    assert run.json["cause"]["id"] == "workspace", run.json["cause"]
    assert run.json["fixes"][0]["advice"] == "smaller_factorization"


RECURRENT = """
    import torch

    lstm = torch.nn.LSTM(64, 1024, 3, batch_first=True).cuda()
    lstm(torch.zeros(512, 255, 64, device="cuda"))[0].sum().backward()
"""


def test_the_workspace_of_a_recurrent_layer_is_not_that_of_a_product(oomph):
    run = oomph(RECURRENT, "--memory", "11GiB")
    assert run.json["cause"]["id"] == "workspace", run.json["cause"]
    assert run.json["fixes"][0]["advice"] == "smaller_recurrence"


def test_a_batch_is_cut_into_as_many_parts_as_are_enough(oomph):
    run = oomph(UNROLLED.replace("randn(512,", "randn(4096,"), "--memory", "1.2GiB")
    assert run.json["cause"]["id"] == "batch_too_large", run.json["cause"]
    (fix, *_) = run.json["fixes"]
    assert fix["lever"] == "micro_batch" and fix["enough"] is True
    assert "one part in" in fix["what"]


def test_a_runs_directory_is_explained_as_the_run_was(oomph, tmp_path):
    run = oomph(BY_HAND, "--memory", "0.55GiB")
    explained = subprocess.run(
        [OOMPH, "explain", "--no-report", "--json", "-", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert explained.returncode == 3, explained.stderr
    again = schemas.read(explained.stdout)
    assert again["without_limit"]
    assert again["cause"] == run.json["cause"]
