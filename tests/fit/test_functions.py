"""Plans for code without modules: functions that are computed again."""

from tests.support.command import fit

SOLVER = """
    import torch

    field = torch.zeros(1024, 1024, device="cuda", requires_grad=True)

    def slope(u):
        return torch.tanh(u * field.exp()) - u.sin()

    def step(u):
        k1 = slope(u)
        k2 = slope(u + 0.1 * k1)
        return u + 0.05 * (k1 + k2)

    def solve(u):
        for _ in range(24):
            u = step(u)
        return u

    def train():
        optimizer = torch.optim.SGD([field], lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = solve(torch.rand(1024, 1024, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()

    train()
"""


def test_a_solver_without_modules(tmp_path):
    found = fit(tmp_path, SOLVER, "--memory", "420MiB", "--margin", "0")
    assert found.status == 0, found.err + found.out
    plan = found.json["plans"][found.json["chosen"]]
    chosen = {lever["name"]: lever for lever in plan["levers"]}
    assert chosen["checkpoint"]["modules"] in (["step()"], ["slope()"]), plan
    assert plan["same_results"] == "exact" and plan["verified"]
    assert plan["time_ratio"] < 1.7
    name = chosen["checkpoint"]["modules"][0].removesuffix("()")
    text = (tmp_path / "oomph-plan.patch").read_text()
    line = f"{name} = functools.partial(torch.utils.checkpoint.checkpoint, {name}, use_reentrant=False)"
    assert f"+{line}" in text


def test_with_a_limit_and_without(tmp_path):
    """What `oomph run` tells stands beside what the plan starts from, where the two differ."""
    holes = """
        import torch
        w = torch.nn.Parameter(torch.ones(1, device="cuda"))
        optimizer = torch.optim.SGD([w], lr=0.1)
        for step in range(4):
            for size in range(40, 60, 2):
                x = (w * torch.ones(size, 1 << 18, device="cuda")).exp()
                (x.sum() * 0).backward()
                del x
            optimizer.step()
            optimizer.zero_grad()
    """
    found = fit(tmp_path, holes, "--memory", "850MiB", "--margin", "0")
    unlimited = found.json.get("plain_unlimited_bytes")
    if unlimited is not None:
        assert unlimited > found.json["plain"]["used_bytes"]
