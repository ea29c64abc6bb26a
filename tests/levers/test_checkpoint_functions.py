"""`checkpoint` of functions outside of modules: bitwise the plain run."""

import sys
import textwrap

import pytest
from oomph import _user_functions

from tests.support.levers import run, same

NBODY = """
    import torch

    log_mass = torch.zeros(12, requires_grad=True)
    weights = {"a": torch.randn(8, 8).requires_grad_(True), "b": torch.randn(8).requires_grad_(True)}
    noise = torch.nn.Dropout(0.3)

    def force(r2, p):
        h = torch.tanh(r2[..., None] * p["b"] @ p["a"])
        return noise(h).sum(-1)

    def acceleration(x):
        delta = x[None] - x[:, None]
        return (force(delta.square().sum(-1), weights)[..., None] * delta * log_mass.exp()[:, None]).sum(1)

    def leapfrog(x):
        v = torch.zeros_like(x)
        path = []
        for _ in range(5):
            v = v + 0.1 * acceleration(x)
            x = x + 0.1 * v
            path.append(x)
        return torch.stack(path)

    def train():
        optimizer = torch.optim.Adam([log_mass, *weights.values()], lr=0.01)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = leapfrog(torch.randn(12, 3)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, [p.detach() for p in (log_mass, *weights.values())]
"""

SCENE = """
    import torch

    class Scene:
        def __init__(self, count):
            self.centre = torch.rand(count, 2).requires_grad_(True)
            self.colour = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))

        def band(self, points, rows):
            near = torch.exp(-(points[:, None] - self.centre).square().sum(-1))
            out = torch.zeros(len(points), 3)
            out[:, :] = near @ torch.rand(len(self.centre), 3) + self.colour(points)
            return out * rows

    def train():
        scene = Scene(7)
        optimizer = torch.optim.SGD([scene.centre, *scene.colour.parameters()], lr=0.1)
        losses = []
        for _ in range(3):
            bands = [scene.band(torch.rand(9, 2), rows=2) for _ in range(4)]
            loss = torch.cat(bands).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, scene.centre.detach(), scene.colour.state_dict()
"""

FILTER = """
    import torch

    transition = (torch.eye(4) * 0.9).requires_grad_(True)
    log_r = torch.zeros(2, requires_grad=True)

    def update(mean, cov, *, y):
        cov = transition @ cov @ transition.T + 0.1 * torch.eye(4)
        seen = cov[:2, :2] + torch.diag(log_r.exp())
        gain = torch.linalg.solve(seen, cov[:2]).T
        miss = y - mean[:2]
        return mean @ transition.T + gain @ miss, cov - gain @ cov[:2], miss.square().sum()

    def train():
        optimizer = torch.optim.LBFGS([transition, log_r], lr=0.1, max_iter=3)
        losses = []
        ys = torch.randn(20, 2)

        def closure():
            optimizer.zero_grad()
            mean, cov, total = torch.zeros(4), torch.eye(4), 0.0
            for y in ys:
                mean, cov, miss = update(mean, cov, y=y)
                total = total + miss
            total.backward()
            losses.append(total.detach())
            return total

        for _ in range(2):
            optimizer.step(closure)
        return losses, transition.detach(), log_r.detach()
"""


def both(tmp_path, code, *functions):
    """A run with and one without the lever leave the same; returns the lever's report."""
    (tmp_path / "physics.py").write_text(textwrap.dedent(code))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport physics\nout = physics.train()"
    )
    plain = run(tmp_path, code)
    modules = [f"physics.{function}()" for function in functions]
    changed = run(tmp_path, code, ("checkpoint", {"modules": modules}))
    if changed.refusal is None:
        assert same(changed.out, plain.out)
    return changed


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        (NBODY, ["acceleration"]),
        (NBODY, ["force"]),
        (NBODY, ["leapfrog", "acceleration"]),
        (SCENE, ["Scene.band"]),
        (FILTER, ["update"]),
    ],
)
def test_results_are_bitwise_the_same(tmp_path, code, functions):
    changed = both(tmp_path, code, *functions)
    assert changed.refusal is None
    assert changed.levers["checkpoint"]["applied"] == 1


def test_what_is_not_there_is_said(tmp_path):
    changed = both(tmp_path, NBODY, "acceleration", "gone")
    assert "physics.gone()" in changed.levers["checkpoint"]["note"]


def test_a_model_that_cannot_be_reached_is_refused(tmp_path):
    hidden = NBODY.replace(
        "noise = torch.nn.Dropout(0.3)", "noises = [lambda h, m=torch.nn.BatchNorm1d(12): m(h)]"
    )
    changed = both(tmp_path, hidden.replace("noise(h)", "noises[0](h)"), "acceleration")
    assert "calls a BatchNorm1d" in changed.refusal


CLEAR = """
    import torch
    seen, table = [], {}
    generator = torch.Generator()

    def plain(x):
        out = torch.zeros(3)
        out[0] = x.sum()
        parts = []
        for i in range(3):
            parts.append(out * i)
        total = 0
        total += parts[0]
        return torch.stack(parts)

    def calls(x):
        return plain(x) + 1

    def keeps(x):
        seen.append(x)
        return x

    def stores(x):
        table["x"] = x
        return x

    def counts(x):
        global seen
        seen = [x]
        return x

    def draws(x):
        return x + torch.randn(3, generator=generator)

    def given(x, out):
        out += x
        return out

    def in_place(x):
        return x.mul_(2)

    def differentiates(x):
        return torch.autograd.grad(x.sum(), x, create_graph=True)

    def deep(x):
        return keeps(x)

    class Counter:
        def add(self, x):
            self.count = self.count + 1
            return x
"""


def test_what_a_second_call_would_do_twice(tmp_path, monkeypatch):
    (tmp_path / "looked_at.py").write_text(textwrap.dedent(CLEAR))
    monkeypatch.syspath_prepend(str(tmp_path))
    import looked_at

    functions = [*vars(looked_at).values(), looked_at.Counter.add]
    clear = {
        function.__name__
        for function in functions
        if hasattr(function, "__code__") and _user_functions.may_be_repeated(function)
    }
    del sys.modules["looked_at"]
    assert clear == {"plain", "calls"}
