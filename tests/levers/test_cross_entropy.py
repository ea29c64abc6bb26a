"""`chunked_cross_entropy`: the loss and all gradients to rounding, the logits never whole."""

import pytest

from tests.support.levers import distance, run

SETUP = """
    from oomph.levers import chunked_cross_entropy as lever
    lever.VOCABULARY, lever.MANY = 16, 64
    class Model(nn.Module):
        def __init__(self, bias=True):
            super().__init__()
            self.tokens, self.inner = nn.Embedding(40, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 40, bias=bias)
        def forward(self, x):
            return self.head(torch.tanh(self.inner(self.tokens(x))))
    torch.manual_seed(1)
    teacher = Model()
    model = Model()
    x = torch.randint(40, (3, 7))
    y = torch.randint(40, (3, 7))
    y[0, :5] = -100
    weight = torch.rand(40)
"""

END = """
    if not isinstance(loss, torch.Tensor): raise TypeError(loss)
    grads = torch.autograd.grad(loss, list(model.parameters()), torch.linspace(0.5, 2, loss.numel()).view(loss.shape).to(loss.dtype))
    out = [loss.detach(), *grads]
"""

LOSSES = {
    "plain": "loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
    "sum": "loss = F.cross_entropy(model(x).view(-1, 40), y.view(-1), reduction='sum')",
    "none": "loss = F.cross_entropy(model(x).view(-1, 40), y.view(-1), reduction='none')",
    "weights": "loss = F.cross_entropy(model(x).view(-1, 40), y.view(-1), weight)",
    "smooth": "loss = F.cross_entropy(model(x).view(-1, 40), y.view(-1), label_smoothing=0.1)",
    "smooth and weights": "loss = nn.CrossEntropyLoss(weight, label_smoothing=0.2)(model(x).reshape(-1, 40), y.view(-1))",
    "ignored index": "loss = nn.CrossEntropyLoss(ignore_index=3)(model(x).view(-1, 40), y.clamp(min=0).view(-1))",
    "shifted": "logits = model(x)[..., :-1, :].contiguous().float(); loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y[..., 1:].reshape(-1))",
    "scaled": "loss = F.cross_entropy((model(x) * 0.5).view(-1, 40), y.view(-1))",
    "capped": "loss = F.cross_entropy(torch.tanh(model(x) / 30).view(-1, 40) * 30, y.view(-1))",
    "two losses": "logits = model(x); loss = F.cross_entropy(logits.view(-1, 40), y.view(-1)) + 1e-2 * logits.logsumexp(-1).pow(2).mean()",
    "z-loss first": "logits = model(x); z = logits.logsumexp(-1).pow(2).mean(); loss = F.cross_entropy(logits.view(-1, 40), y.view(-1)) + z",
    "classes second": "loss = F.cross_entropy(model(x).transpose(1, 2), y)",
    "classes second, of each token, with weights": "loss = F.cross_entropy(model(x).permute(0, 2, 1).float(), y, weight, reduction='none')",
    "classes second of images": "loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(x).view(3, 7, 1, 40).movedim(-1, 1), y[..., None])",
    "classes second, and more": "logits = model(x); loss = F.cross_entropy(logits.mT, y) + logits.transpose(-2, -1).pow(2).mean()",
    "classes second and probabilities": "loss = F.cross_entropy(model(x).transpose(1, 2), F.one_hot(y.clamp(min=0), 40).float().mT)",
    "sequence second": "loss = F.cross_entropy(model(x).transpose(0, 1).flatten(0, 1), y.T.flatten())",
    "log softmax of classes second": "loss = F.nll_loss(F.log_softmax(model(x).transpose(1, 2), 1), y)",
    "probabilities": "loss = F.cross_entropy(model(x).view(-1, 40), F.one_hot(y.clamp(min=0), 40).float().view(-1, 40))",
    "own softmax": "loss = -F.log_softmax(model(x), -1).view(-1, 40)[torch.arange(21), y.clamp(min=0).view(-1)].mean()",
    "functional head": "loss = F.cross_entropy(F.linear(model.inner(model.tokens(x)), model.head.weight).view(-1, 40) + model.head.bias, y.view(-1))",
    "autocast": "\n    with torch.autocast('cpu', torch.bfloat16): loss = F.cross_entropy(model(x).view(-1, 40), y.view(-1))",
    "log softmax": "loss = F.nll_loss(F.log_softmax(model(x).view(-1, 40), dim=1), y.view(-1), reduction='sum')",
    "log softmax modules": "loss = nn.NLLLoss(weight, ignore_index=3)(nn.LogSoftmax(-1)(model(x)).view(-1, 40), y.clamp(min=0).view(-1))",
    "log softmax twice used": "logs = model(x).log_softmax(-1); loss = F.nll_loss(logs.view(-1, 40), y.view(-1)) - 0.1 * logs.mean()",
    "log softmax along the sequence": "loss = F.nll_loss(F.log_softmax(model(x), dim=1).view(-1, 40), y.view(-1))",
    "autocast log softmax": "\n    with torch.autocast('cpu', torch.bfloat16): loss = F.nll_loss(torch.log_softmax(model(x), -1).view(-1, 40), y.view(-1))",
    "half log softmax": "model.bfloat16(); loss = F.nll_loss(F.log_softmax(model(x), -1).float().view(-1, 40), y.view(-1))",
    "distilled": "\n    with torch.no_grad(): wise = teacher(x).float()\n    s, t = model(x)[:, :-1].reshape(-1, 40), wise[:, :-1].reshape(-1, 40); loss = F.kl_div(F.log_softmax(s / 2, -1), F.softmax(t / 2, -1), reduction='batchmean') * 4 + F.cross_entropy(s, y.clamp(min=0)[:, 1:].reshape(-1))",
    "distilled, logarithms": "loss = nn.KLDivLoss(reduction='sum', log_target=True)(model(x).log_softmax(-1), teacher(x).detach().log_softmax(-1))",
    "probabilities of a teacher": "loss = F.cross_entropy(model(x).view(-1, 40), teacher(x).detach().softmax(-1).view(-1, 40))",
    "gathered": "logs = model(x)[:, :-1].float().log_softmax(-1).gather(-1, x[:, 1:, None]).squeeze(-1); loss = -(logs * (y[:, 1:] >= 0)).sum() / 3",
    "row by row": "loss = -torch.stack([F.log_softmax(row, dim=-1).gather(dim=-1, index=i.unsqueeze(-1)).squeeze(-1) for row, i in zip(model(x), x)]).mean()",
    "own smoothing": "logs = model(x).log_softmax(-1); loss = (-0.9 * logs.gather(-1, x[..., None])[..., 0] - 0.1 * logs.mean(-1)).mean()",
    "entropy": "logs = model(x).log_softmax(-1); loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten()) - (logs.exp() * logs).sum(-1).mean()",
    "learned temperature": "model.t = nn.Parameter(torch.tensor(0.7)); model.b = nn.Parameter(torch.rand(1, 40)); loss = F.cross_entropy(((model(x) + model.b) * model.t.exp()).flatten(0, 1), y.flatten(), weight, label_smoothing=0.1)",
    "tied product": "h = torch.tanh(model.inner(model.tokens(x))) + 0 * model.head.weight[0] + 0 * model.head.bias[0]; loss = F.cross_entropy((h @ model.tokens.weight.T).flatten(0, 1), y.flatten())",
    "masked rows": "loss = F.cross_entropy(model(x)[y >= 0], y[y >= 0])",
    "margin": "cosine = F.linear(F.normalize(model.inner(model.tokens(x)).flatten(0, 1)), F.normalize(model.head.weight)).clamp(-1, 1); t = cosine.gather(1, x.view(-1, 1)); loss = F.cross_entropy(cosine.scatter(1, x.view(-1, 1), t - 0.2) * 64, x.flatten()) + 0 * model.head.bias.sum()",
    "accuracy first": "logits = model(x)\n    with torch.no_grad(): right = (logits.argmax(-1) == y).sum() + logits.std()\n    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())",
    "autocast with a bias": "\n    with torch.autocast('cpu', torch.bfloat16): loss = F.cross_entropy((model(x) + torch.arange(40.)[None]).view(-1, 40).float(), y.view(-1))",
    "half": "model.bfloat16(); loss = F.cross_entropy(model(x).float().view(-1, 40), y.view(-1))",
}

WHOLE = (
    "classes second and probabilities",
    "log softmax of classes second",
    "log softmax along the sequence",
    "half log softmax",
)


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("chunks", [2, 5, 100])
def test_losses_and_gradients(tmp_path, case, chunks):
    code = SETUP + "\n    " + LOSSES[case] + END
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": chunks}))
    assert changed.refusal is None, changed.refusal
    limit = 1e-2 if case.startswith(("autocast", "half")) else 2e-6
    assert distance(changed.out, plain.out) <= limit
    for a, b in zip(changed.out, plain.out, strict=True):
        assert a.dtype == b.dtype and distance(a, b) <= 2 * limit
    assert (changed.levers["chunked_cross_entropy"]["applied"] > 0) == (case not in WHOLE)


@pytest.mark.parametrize(
    "loss",
    [
        "F.cross_entropy(model(x).view(-1, 40), y.view(-1))",
        "F.nll_loss(F.log_softmax(model(x).view(-1, 40), dim=1), y.view(-1))",
        "F.cross_entropy((model(x) + 1).view(-1, 40), y.view(-1))",
        "model(x).log_softmax(-1).gather(-1, x[..., None]).mean()",
        "F.kl_div(F.log_softmax(model(x) / 2, -1), teacher(x).detach().softmax(-1), reduction='batchmean')",
    ],
)
def test_logits_never_exist(tmp_path, loss):
    code = SETUP + """
    largest = 0
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            global largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (40,) and result.shape[0] != 8:
                if result.shape != (40, 40): largest = max(largest, result.numel() // 40)
            return result
    loss = LOSS
    with Watch():
        loss = LOSS
        loss.backward()
    out = largest
    """.replace("LOSS", loss)  # fmt: skip
    assert run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 7})).out in (1, 3)
    assert run(tmp_path, code).out == 21


@pytest.mark.parametrize(
    "beside",
    [("recompute", {"modules": ["Model.inner", "Model.norm"]}), ("micro_batch", {"parts": 2})],
)
@pytest.mark.parametrize("loss", ["F.cross_entropy", "nn.CrossEntropyLoss()"])
def test_levers_that_look_at_the_graph_of_logits_do_not_make_them(tmp_path, beside, loss):
    code = (
        SETUP
        + """
    from torch.utils.data import DataLoader, TensorDataset
    class Normal(Model):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
        def forward(self, x):
            return self.head(self.norm(self.inner(self.tokens(x))))
    Normal.__name__ = "Model"
    model = Normal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in DataLoader(TensorDataset(torch.randint(40, (8, 7)), torch.randint(40, (8, 7))), batch_size=4):
        optimizer.zero_grad()
        LOSS(model(a).view(-1, 40), b.view(-1)).backward()
        optimizer.step()
    out = [p.detach() for p in model.parameters()]
    """.replace("LOSS", loss)
    )
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 2}), beside)
    assert changed.refusal is None, changed.refusal
    assert distance(changed.out, plain.out) <= 2e-6
    chunked = changed.levers["chunked_cross_entropy"]
    assert chunked["applied"] > 0 and chunked["note"] is None, chunked
    assert changed.levers[beside[0]]["applied"] > 0


def test_what_else_scripts_do_with_logits(tmp_path):
    code = (
        SETUP
        + """
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, 40), y.view(-1))
    loss.backward()
    right = (logits.argmax(-1) == y).float().mean()
    out = [loss.detach(), right, logits.detach().cpu(), torch.stack([logits, logits]).sum().detach(),
           torch.tensor(logits[0, 0].tolist()), torch.tensor(logits.shape), logits.mean().detach(),
           model(x).softmax(-1).max(-1).values.detach(), torch.from_numpy(logits.detach().numpy())]
    str(logits)
    """
    )
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 3}))
    assert distance(changed.out, plain.out) <= 1e-6
    assert "more than the loss" in changed.levers["chunked_cross_entropy"]["note"]


def test_hugging_face_losses(tmp_path):
    pytest.importorskip("transformers")
    code = SETUP + """
    import transformers
    config = transformers.GPT2Config(vocab_size=80, n_embd=16, n_layer=2, n_head=2, n_positions=16,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(80, (3, 12))
    loss = model(input_ids=ids, labels=ids).loss
    """ + END  # fmt: skip
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 4}))
    assert distance(changed.out, plain.out) <= 1e-6
    report = changed.levers["chunked_cross_entropy"]
    assert report["applied"] == 1 and report["note"] is None


def test_inert_without_a_large_vocabulary(tmp_path):
    code = """
    model = nn.Linear(8, 10)
    F.cross_entropy(model(torch.randn(4, 8)), torch.randint(10, (4,))).backward()
    """
    report = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 4})).levers
    assert report["chunked_cross_entropy"]["applied"] == 0
    assert "4096 classes" in report["chunked_cross_entropy"]["note"]


def test_gradients_are_there_for_as_many_backward_passes_as_may_come(tmp_path):
    code = SETUP + """
    model.head.weight.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    out = []
    for loss in (
        F.cross_entropy(model(x).view(-1, 40), y.view(-1)) * 3,
        F.cross_entropy(model(x).view(-1, 40), y.view(-1), reduction="none").square().sum(),
    ):
        out += [*torch.autograd.grad(loss, parameters, retain_graph=True), *torch.autograd.grad(loss, parameters)]
        try:
            torch.autograd.grad(loss, parameters)
        except RuntimeError as error:
            out.append("second time" in str(error))
    """  # fmt: skip
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 5}))
    assert changed.refusal is None and changed.levers["chunked_cross_entropy"]["applied"] == 2
    for a, b in zip(changed.out, plain.out, strict=True):
        assert a is b if isinstance(b, bool) else distance(a, b) <= 4e-6


@pytest.mark.parametrize("beside", [("split_forward", {"parts": 3}), ("micro_batch", {"parts": 2})])
@pytest.mark.parametrize(
    "loss",
    [
        "s, t = model(a), wise(a); loss = F.kl_div(F.log_softmax(s[:, :-1].flatten(0, 1) / 2, -1), F.softmax(t[:, :-1].flatten(0, 1) / 2, -1), reduction='batchmean')",
        "loss = -(model(a).log_softmax(-1).gather(-1, b[..., None])[..., 0].exp() - wise(a).log_softmax(-1).gather(-1, b[..., None])[..., 0]).mean()",
        "loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten(), label_smoothing=0.1)",
    ],
)
def test_functions_of_logits_beside_levers_that_split_batches(tmp_path, beside, loss):
    code = SETUP + """
    from torch.utils.data import DataLoader, TensorDataset
    class Biased(Model):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.rand(1, 40))
        def forward(self, x):
            return super().forward(x) + self.shift
    teacher, model = Biased(), Biased()
    def wise(x):
        with torch.no_grad():
            return teacher(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in DataLoader(TensorDataset(torch.randint(40, (12, 7)), torch.randint(40, (12, 7))), batch_size=6):
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    out = [p.detach() for p in model.parameters()]
    """.replace("LOSS", loss)  # fmt: skip
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 2}), beside)
    assert changed.refusal is None, changed.refusal
    assert distance(changed.out, plain.out) <= 2e-6
    assert all(changed.levers[name]["applied"] for name in (beside[0], "chunked_cross_entropy"))
    assert "whole" not in (changed.levers["chunked_cross_entropy"]["note"] or "")


def test_logits_after_the_step_are_refused(tmp_path):
    code = SETUP + """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(x)
    F.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    out = (logits.argmax(-1) == y).sum()
    """  # fmt: skip
    refusal = run(tmp_path, code, ("chunked_cross_entropy", {"chunks": 2})).refusal
    assert "weights have changed" in str(refusal)
