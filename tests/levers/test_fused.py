"""`fused_modules`: one kernel does what was written out, to rounding."""

import pytest
import torch

from tests.support.levers import run

MODEL = """
    import math

    class TanhGELU(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    class RMSNorm(nn.Module):
        def __init__(self, width, eps=1e-6):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

        def forward(self, x):
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * y.to(x.dtype)

    class OneMore(RMSNorm):
        def forward(self, x):
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
            return (1.0 + self.weight) * y.to(x.dtype)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = RMSNorm(32), nn.Linear(32, 64)
            self.act, self.down = TanhGELU(), nn.Linear(64, 32)
            self.other = OneMore(32)

        def forward(self, x):
            return self.other(self.down(self.act(self.up(self.norm(x)))))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = []
    for step in range(3):
        x = torch.randn(16, 32)
        keep = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t)
        with keep:
            loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    out = [loss.detach(), [p.grad for p in model.parameters()], sum(saved)]
"""
NAMES = ["Net.norm", "Net.act", "Net.other"]


def test_equal_to_rounding_and_less_is_saved(tmp_path):
    plain = run(tmp_path, MODEL)
    changed = run(tmp_path, MODEL, ("fused_modules", {"modules": NAMES}))
    assert changed.refusal is None, changed.refusal
    assert torch.allclose(changed.out[0], plain.out[0], rtol=1e-6)
    for mine, theirs in zip(changed.out[1], plain.out[1], strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()
    assert (
        changed.out[2] < 0.8 * plain.out[2]
    )  # on the CPU a normalization is still several operators
    report = changed.levers["fused_modules"]
    assert report["applied"] == 2
    assert "1 skipped because no kernel of PyTorch does the same: Net.other" in report["note"]


def test_other_arguments_and_types_are_left_alone(tmp_path):
    twice = MODEL.replace("self.norm(x)", "self.norm(x.bfloat16()).float()")
    changed = run(tmp_path, twice, ("fused_modules", {"modules": ["Net.norm"]}))
    report = changed.levers["fused_modules"]
    assert report["applied"] == 0 and "different types" in report["note"]


@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_hugging_face(kind):
    transformers = pytest.importorskip("transformers")
    from oomph.levers.fused_modules import one_kernel

    if kind == "GPT2":
        model = transformers.GPT2Model(
            transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=9)
        )
        assert one_kernel(model.h[0].mlp.act) is not None
        assert one_kernel(model.h[0].mlp.dropout) is None and one_kernel(model.h[0].ln_1) is None
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=1, hidden_size=32, num_attention_heads=2, vocab_size=9
        )
        model = transformers.LlamaModel(config)
        assert one_kernel(model.norm) is not None
        assert one_kernel(model.layers[0].mlp.act_fn) is None


class _Norm(torch.nn.Module):
    """A root-mean-square normalization; its kinds differ from it where a first look does not tell."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), eps

    def scale(self, x):
        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * (x * self.scale(x))


class _WithoutGradient(_Norm):
    def scale(self, x):
        return super().scale(x).detach()


class _OverRows(_Norm):
    def scale(self, x):
        return torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps)


class _Limited(_Norm):
    def forward(self, x):
        return super().forward(x.clamp(-50, 50))


class _NoisyInTraining(_Norm):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.1, self.training)


class _DoublesInEvaluation(_Norm):
    def forward(self, x):
        return super().forward(x) * (1 if self.training else 2)


class _EpsilonOfItsOwn(_Norm):
    """In bf16 the kernel would take another."""

    def __init__(self):
        super().__init__(torch.finfo(torch.float32).eps)
        self.own, self.eps = self.eps, None

    def scale(self, x):
        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.own)


def test_each_module_is_tried_for_itself():
    """Gradients, other shapes and modes, and large values included; nothing is left behind."""
    from oomph.levers.fused_modules import one_kernel

    assert one_kernel(_Norm()) is not None
    for kind in (
        _WithoutGradient, _OverRows, _Limited, _NoisyInTraining, _DoublesInEvaluation, _EpsilonOfItsOwn,
    ):  # fmt: skip
        assert one_kernel(kind()) is None, kind
    seen, module = [], _Norm()
    module.register_forward_hook(lambda module, args, output: seen.append(output))
    state = torch.get_rng_state()
    module.weight.requires_grad_(False)
    assert one_kernel(_NoisyInTraining()) is None
    for mode in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with mode:
            assert one_kernel(module) is not None
    assert torch.equal(state, torch.get_rng_state()) and not seen and module.weight.grad is None
