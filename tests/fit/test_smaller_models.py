"""Smaller relatives of models: they run, and are as small as is said."""

import pytest
import torch
from oomph._recorder import smaller_models
from torch import nn

from tests.support.levers import run


def image_model(name, **arguments):
    models = pytest.importorskip("torchvision.models")
    return getattr(models, name)(weights=None, **arguments), (torch.randn(2, 3, 64, 64),), {}


def text_model(kind, **arguments):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(vocab_size=500, **arguments)
    head = "ForSequenceClassification" if kind == "Bert" else "ForCausalLM"
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else kind + head)(config)
    return model, (), dict(input_ids=torch.randint(500, (2, 16)))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.ReLU(), nn.Conv2d(32, 64, 3, groups=4)
        )
        self.scale = nn.Parameter(torch.ones(1, 64, 1, 1))
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = (self.features(x) * self.scale).flatten(2).transpose(1, 2)
        return self.head(self.attention(x, x, x)[0].mean(1))


MODELS = {
    "plain": lambda: (Plain(), (torch.randn(2, 3, 12, 12),), {}),
    "resnet18": lambda: image_model("resnet18"),
    "mobilenet": lambda: image_model("mobilenet_v2"),
    "vit": lambda: image_model("vit_b_32", image_size=64),
    "gpt2": lambda: text_model("GPT2", n_layer=2, n_embd=96, n_head=4, use_cache=False),
    "bert": lambda: text_model("Bert", num_hidden_layers=2, hidden_size=96, num_attention_heads=4, intermediate_size=192),
    "llama": lambda: text_model("Llama", num_hidden_layers=2, hidden_size=96, num_attention_heads=4, num_key_value_heads=2, intermediate_size=192, use_cache=False),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_half_as_wide(name):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    plain = sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        before = model(*args, **kwargs)
    shape = getattr(before, "logits", before).shape
    objects = [id(p) for p in model.parameters()]
    smaller_models.narrow(model, 0.5)
    assert [id(p) for p in model.parameters()] == objects
    after = model(*args, **kwargs)
    after = getattr(after, "logits", after)
    assert after.shape == shape
    after.sum().backward()
    narrow = sum(p.numel() for p in model.parameters())
    # Between the square of the width and what goes in and comes out, which stays.
    assert 0.22 * plain < narrow < 0.62 * plain
    for p in model.parameters():
        assert p.grad is None or p.grad.shape == p.shape


def test_convolutions_in_two_parts():
    relative = smaller_models.Separable()
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(32, 32, 1)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(torch.randn(1, 3, 8, 8)).shape
    relative.change(model)
    assert relative.replaced == 1
    depth, across = model[1]
    assert depth.weight.numel() == 16 * 9 and across.weight.numel() == 16 * 32
    model(torch.randn(1, 3, 8, 8)).sum().backward()
    assert model(torch.randn(1, 3, 8, 8)).shape == before
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}


CODE = """
from oomph._recorder import smaller_models
member = smaller_models.Member({steps})
member.install()
{build}
out = member.became
"""


@pytest.mark.parametrize(
    ("build", "steps", "became"),
    [
        ("from torchvision.models import resnet50\nmodel = resnet50(num_classes=10)", 1, "resnet34"),
        ("import torchvision\nmodel = torchvision.models.get_model('resnet50')", 2, "resnet18"),
        ("import torchvision\nmodel = torchvision.models.resnet18()", 1, None),
        ("import transformers as t\nmodel = t.GPT2LMHeadModel(t.GPT2Config(n_layer=24, n_embd=1024, n_head=16))", 1, "gpt2"),
        ("import transformers as t\nmodel = t.BertModel(t.BertConfig())", 2, "bert-small"),
        ("import transformers as t\nmodel = t.LlamaForCausalLM(t.LlamaConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=4))", 1, None),
    ],
)  # fmt: skip
def test_members_of_families(tmp_path, build, steps, became):
    package = "torchvision" if "torchvision" in build else "transformers"
    pytest.importorskip(package)
    done = run(tmp_path, CODE.format(steps=steps, build=build), prelude=f"import {package}")
    assert done.out == ([became] if became else [])


def test_each_model_is_changed_once_also_where_another_one_lay(monkeypatch):
    """Models that are made one after the other often come to lie at the same address."""
    original, handles, changed = smaller_models.nn_module.register_module_forward_pre_hook, [], []
    monkeypatch.setattr(
        smaller_models.nn_module,
        "register_module_forward_pre_hook",
        lambda hook: handles.append(original(hook)),
    )
    smaller_models.once_a_model(lambda module: changed.append(type(module)))
    try:
        for _ in range(20):
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            model(model(torch.randn(1, 4)))
            del model
    finally:
        handles[0].remove()
    assert changed == [nn.Sequential] * 20
