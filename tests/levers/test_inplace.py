"""`inplace_activations`: where nothing else reads the input, and nowhere else."""

from tests.support.levers import run, same

CODE = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.safe, self.residual, self.saved, self.silu = nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.SiLU()
            self.given, self.out, self.drop, self.last = nn.ReLU(), nn.ELU(), nn.Dropout(0.5), nn.ReLU()
        def forward(self, x):
            x = self.given(x)
            x = self.safe(self.norm(self.a(x)))
            h = self.b(x)
            x = x + self.residual(h) * 0.5 + h          # h is read again
            x = self.saved(torch.sigmoid(x))            # sigmoid keeps its result
            x = self.drop(self.out(self.silu(self.b(x))))
            kept = self.a(x)
            return self.last(kept), kept                # handed out
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for step in range(3):
        a, b = model(torch.randn(4, 8))
        loss = (a * 2 + b).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append([loss.detach(), [p.detach().clone() for p in model.parameters()]])
    out.append(list(model.state_dict().values()))
    out.append([m.inplace for m in (model.safe, model.residual, model.saved, model.silu, model.given, model.out, model.drop, model.last)])
"""  # fmt: skip

NAMES = [f"Net.{n}" for n in ["safe", "residual", "saved", "silu", "given", "out", "drop", "last"]]
NAMES_LEFT = ["residual", "saved", "silu", "given", "drop", "last"]


def test_only_where_nothing_reads_the_input(tmp_path):
    plain = run(tmp_path, CODE)
    changed = run(tmp_path, CODE, ("inplace_activations", {"modules": NAMES}))
    assert same(changed.out[:-1], plain.out[:-1])
    # Dropout would overwrite the result of ELU, which ELU in place needs.
    assert changed.out[-1] == [True, False, False, False, False, True, False, False]
    report = changed.levers["inplace_activations"]
    assert report["applied"] == 2
    for words in ("SiLU needs its input", "read again", "saved", "the model's own", "kept by"):
        assert words in report["note"], report["note"]
    # A patch must not make them work in place.
    assert sorted(report["left"]) == sorted(f"Net.{n}" for n in NAMES_LEFT)


def test_two_in_a_row(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.LeakyReLU())
    loss = model(torch.randn(4, 8)).pow(2).sum()
    loss.backward()
    out = [loss.detach(), [p.grad for p in model.parameters()]]
    """
    plain = run(tmp_path, code)
    names = ["Sequential.1", "Sequential.2", "Sequential.4"]
    changed = run(tmp_path, code, ("inplace_activations", {"modules": names}))
    assert same(changed.out, plain.out)
    assert changed.levers["inplace_activations"]["applied"] >= 1


def test_a_model_that_takes_sparse_tensors(tmp_path):
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act, self.b = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
        def forward(self, x, graph, rows):
            return self.b(self.act(torch.sparse.mm(graph, self.a(x)) + torch.mm(rows, x)))
    model = Net()
    graph = torch.eye(4).to_sparse()
    loss = model(torch.randn(4, 8), graph, graph.to_sparse_csr()).pow(2).sum()
    loss.backward()
    out = [loss.detach(), [p.grad for p in model.parameters()]]
    """
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("inplace_activations", {"modules": ["Net.act"]}))
    assert same(changed.out, plain.out)
    assert changed.levers["inplace_activations"]["applied"] == 1, changed.levers
