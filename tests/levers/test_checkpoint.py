"""`checkpoint`: bitwise the plain run, whatever the blocks do."""

import pytest

from tests.support.blocks import ALL, BLOCKS, TRAIN
from tests.support.levers import run, same


def both(tmp_path, code, modules=ALL, lever="checkpoint", applied=None):
    """Runs with and without the lever leave the same `out`; returns the lever's report."""
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, (lever, {"modules": modules}))
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    report = changed.levers[lever]
    assert report["applied"] == (len(modules) if applied is None else applied), report
    return report


def test_dropout_batch_norm_and_every_random_source(tmp_path):
    assert both(tmp_path, BLOCKS + TRAIN)["note"] is None


def test_half_of_the_blocks(tmp_path):
    both(tmp_path, BLOCKS + TRAIN, ALL[::2])


def test_a_block_and_its_parts(tmp_path):
    both(
        tmp_path, BLOCKS + TRAIN, ["Net", "Net.blocks.1", "Net.blocks.1.conv", "Net.blocks.2.norm"]
    )


def test_the_inside_is_really_not_kept(tmp_path):
    code = BLOCKS + """
    import gc
    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1
        @staticmethod
        def backward(ctx, g):
            return g
    def held():
        gc.collect()
        return sum(isinstance(t, torch.Tensor) and t.shape == (3, 4, 8, 8) for t in gc.get_objects())
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        loss = model(torch.randn(3, 4, 8, 8)).mean()
    out = sum(n for n in saved if n >= 100)
    """  # fmt: skip
    plain = run(tmp_path, code).out
    changed = run(tmp_path, code, ("checkpoint", {"modules": ALL})).out
    assert changed == 4 * 3 * 4 * 8 * 8  # the inputs of four blocks
    assert plain > 4 * changed


def test_frozen_parameters(tmp_path):
    frozen = "\n    for p in model.blocks[0].parameters(): p.requires_grad_(False)\n"
    report = both(tmp_path, BLOCKS + frozen + TRAIN, applied=3)
    assert "Net.blocks.0" in report["note"]


def test_called_several_times_a_step(tmp_path):
    twice = TRAIN.replace("model(x)", "(model(x) + model(x * 2))")
    both(tmp_path, BLOCKS + twice)


def test_accumulation_and_retained_graphs(tmp_path):
    code = TRAIN.replace(
        "loss.backward()",
        "loss.backward(retain_graph=True); loss.backward(); model(x).sum().backward()",
    )
    both(tmp_path, BLOCKS + code)


def test_autocast(tmp_path):
    code = TRAIN.replace(
        "loss = model(x).pow(2).mean()",
        "\n        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "            loss = model(x).float().pow(2).mean()",
    )
    both(tmp_path, BLOCKS + code)


def test_evaluation_mode_before_the_backward_pass(tmp_path):
    code = TRAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); model.eval()").replace(
        "loss = model(x)", "model.train(); loss = model(x)"
    )
    both(tmp_path, BLOCKS + code)


def test_spectral_norm_reads_what_it_updates(tmp_path):
    code = """
    from torch.nn.utils.parametrizations import spectral_norm
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = spectral_norm(nn.Linear(8, 8)), spectral_norm(nn.Linear(8, 8))
        def forward(self, x):
            return self.b(torch.relu(self.a(x)))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """ + TRAIN.replace("3, 4, 8, 8", "3, 8")
    both(tmp_path, code, ["Net.a", "Net.b"])


def test_momentum_none_and_instance_norm(tmp_path):
    code = (
        """
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, momentum=None), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, track_running_stats=True)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
        + TRAIN
    )
    both(tmp_path, code, ["Sequential.0", "Sequential.1"])


def test_inert_without_gradients(tmp_path):
    code = BLOCKS + "\n    with torch.no_grad(): out = model(torch.randn(3, 4, 8, 8))\n"
    assert "without gradients" in both(tmp_path, code, applied=0)["note"].replace(
        "never called with", "without"
    )


def test_copies_are_not_the_original(tmp_path):
    code = (
        BLOCKS
        + TRAIN
        + """
    import copy
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters(): p.zero_()
    other.eval()
    x = torch.randn(3, 4, 8, 8)
    out.append(torch.equal(other(x), x))
    assert out[-1]
    import io
    file = io.BytesIO()
    torch.save(model.blocks[0].state_dict(), file)
    """
    )
    both(tmp_path, code)


def test_unknown_modules_are_named(tmp_path):
    report = both(tmp_path, BLOCKS + TRAIN, [*ALL, "Net.blocks.9"], applied=4)
    assert "Net.blocks.9" in report["note"]


def test_a_module_that_changes_its_input_is_refused(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)))
    model(torch.randn(2, 4)).sum().backward()
    """
    result = run(tmp_path, code, ("checkpoint", {"modules": ["Sequential.1"]}))
    assert "Sequential.1" in result.refusal and "in place" in result.refusal


def test_an_input_that_is_changed_after_the_module_is_an_error(tmp_path):
    """Under autocast the module saves a copy of its input in another type, so that autograd allows it."""
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

        def forward(self, x):
            x = x.sin()
            x += self.block(x)
            return x

    model = Net()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(2, 4, requires_grad=True)).sum()
    try:
        loss.backward()
        out = "no error"
    except RuntimeError as error:
        out = str(error)
    """
    assert run(tmp_path, code).out == "no error"
    out = run(tmp_path, code, ("checkpoint", {"modules": ["Net.block"]})).out
    assert "the input of Net.block changed in place" in out


def test_a_step_between_forward_and_backward_is_an_error(tmp_path):
    code = (
        BLOCKS
        + """
    loss = model(torch.randn(3, 4, 8, 8)).sum()
    with torch.no_grad():
        for p in model.parameters(): p.add_(1)
    try:
        loss.backward()
        out = "wrong gradients"
    except RuntimeError as error:
        out = str(error)
    """
    )
    assert "Net.blocks" in run(tmp_path, code, ("checkpoint", {"modules": ALL})).out


@pytest.mark.parametrize(
    "compile_", ["model = torch.compile(model)", "model.compile()", "f = torch.compile(lambda x: model(x))"]
)  # fmt: skip
def test_compiled_models_are_refused(tmp_path, compile_):
    modules = [*ALL, *(name.replace("Net.", "OptimizedModule._orig_mod.") for name in ALL)]
    call = "f" if compile_.startswith("f") else "model"
    code = (
        BLOCKS + f"\n    {compile_}\n    out = {call}(torch.randn(3, 4, 8, 8)).sum().backward()\n"
    )
    assert "compiled" in run(tmp_path, code, ("checkpoint", {"modules": modules})).refusal


def test_hugging_face_with_a_cache(tmp_path):
    pytest.importorskip("transformers")
    code = """
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1, use_cache=True,
    )
    model = transformers.LlamaForCausalLM(config)
    model.train()
    ids = torch.randint(50, (2, 12))
    result = model(input_ids=ids, labels=ids)
    result.loss.backward()
    out = [result.loss.detach(), [p.grad for p in model.parameters()]]
    """
    modules = [f"LlamaForCausalLM.model.layers.{i}" for i in range(1, 3)]
    assert "caches" in both(tmp_path, code, modules)["note"]
