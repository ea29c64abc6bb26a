"""`fused_attention`: attention that is written out becomes one kernel, to rounding, or stays as it is."""

import pytest

from tests.support.levers import distance, run, same

STYLES = {
    "manual": """
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in qkv)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
        att = att.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.drop(att)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
    """,
    "in place": """
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in qkv)
        att = torch.matmul(q, k.transpose(-2, -1))
        att /= D**0.5
        att += self.bias
        att.masked_fill_(self.tril == 0, torch.finfo(att.dtype).min)
        y = torch.matmul(att.float().softmax(-1).type_as(q), v).transpose(1, 2).reshape(B, T, C)
    """,
    "einsum": """
        q, k, v = (y.view(B, T, H, D) for y in qkv)
        att = torch.einsum("b i h d, b j h d -> b h i j", q, k) * D**-0.5 + self.bias
        att = torch.where(self.tril == 1, att, -1e9)
        y = torch.einsum("bhij,bjhd->bihd", self.soft(att), v).reshape(B, T, C)
    """,
    "bmm": """
        q, k, v = (y.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D) for y in qkv)
        att = torch.bmm(q * D**-0.5, k.transpose(1, 2)).view(B, H, T, T)
        att = att.masked_fill(self.tril == 0, float("-inf")).view(B * H, T, T)
        y = torch.bmm(torch.softmax(att, -1), v).view(B, H, T, D).transpose(1, 2).reshape(B, T, C)
    """,
    "baddbmm": """
        q, k, v = (y.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D) for y in qkv)
        alibi = self.learned.expand(B, H, T, T).reshape(B * H, T, T)
        att = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=D**-0.5).view(B, H, T, T)
        y = (att.softmax(-1).view(B * H, T, T) @ v).view(B, H, T, D).transpose(1, 2).reshape(B, T, C)
    """,
    "temperature": """
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in qkv)
        att = self.temperature.exp() * (q @ k.mT) - self.bias
        y = (att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
    """,
}

MODEL = """
import math
B, T, H, D = 3, 24, 2, 8
C = H * D

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(C, 3 * C)
        self.drop, self.soft = nn.Dropout({dropout}), nn.Softmax(dim=-1)
        self.register_buffer("tril", torch.tril(torch.ones(T, T))[None, None])
        self.learned = nn.Parameter(torch.randn(1, H, T, T))
        self.register_buffer("bias", torch.randn(1, H, T, T))
        self.temperature = nn.Parameter(torch.zeros(H, 1, 1))

    def forward(self, x):
        qkv = self.qkv(x).split(C, -1)
{style}
        return y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleList([Attention(), Attention()])

    def forward(self, x):
        for attn in self.attn:
            x = x + attn(x)
        return x

model = Net()
x = torch.randn(B, T, C, requires_grad=True)
sizes = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
    y = model(x)
y.square().mean().backward()
out = [y.detach(), x.grad, [p.grad for p in model.parameters() if p.grad is not None], sizes]
"""
NAMES = {"modules": ["Net.attn.0", "Net.attn.1"]}


def model(style, dropout=0.0):
    return MODEL.format(style=style, dropout=dropout)


@pytest.mark.parametrize("style", STYLES)
def test_equal_to_rounding_without_scores(tmp_path, style):
    code = model(STYLES[style])
    plain, fused = run(tmp_path, code), run(tmp_path, code, ("fused_attention", NAMES))
    assert fused.refusal is None, fused.refusal
    report = fused.levers["fused_attention"]
    assert report["applied"] == 2 and report["note"] is None, report
    assert len(fused.out[2]) == len(plain.out[2])
    assert distance(fused.out[:2], plain.out[:2]) <= 1e-6
    assert distance(fused.out[2], plain.out[2]) <= 1e-6
    # The CPU's kernel takes no mask that needs a gradient.
    scores = 3 * 2 * 24 * 24
    assert style == "baddbmm" or (scores not in fused.out[3] and scores in plain.out[3])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("att = self.drop(att)", "att = F.dropout(att, 0.5)"), "dropout"),
        (("att = self.drop(att)", "att = att / (1e-6 + att.sum(-1, keepdim=True))"), "sum"),
        (('float("-inf")', "-10.0"), "masked_fill"),
        (("att = self.drop(att)", "att[..., 0] = 0.0"), "__setitem__"),
        (("att = self.drop(att)", "b = att.view(B, H, T, T); b *= 0.5"), "mul_"),
        (("att = self.drop(att)", "att.register_hook(lambda g: 2 * g)"), "register_hook"),
        (("att = self.drop(att)", "att = att.detach()"), "detach"),
        (("dim=-1", "dim=-2"), "softmax"),
    ],
)
def test_other_uses_compute_scores(tmp_path, change, why):
    assert change[0] in STYLES["manual"]
    code = model(STYLES["manual"].replace(*change))
    plain, other = run(tmp_path, code), run(tmp_path, code, ("fused_attention", NAMES))
    assert other.refusal is None, other.refusal
    report = other.levers["fused_attention"]
    assert report["applied"] == 0 and f"because of {why}" in report["note"], report
    assert sorted(report["left"]) == NAMES["modules"]
    assert same(other.out[:3], plain.out[:3])


def test_a_row_that_finite_numbers_hide_keeps_its_gradients(tmp_path):
    hidden = STYLES["manual"].replace(
        "att = att.masked", "self.tril[0, 0, 3] = 0; att = att.masked"
    )
    code = model(hidden.replace('float("-inf")', "-1e9"))
    plain, other = run(tmp_path, code), run(tmp_path, code, ("fused_attention", NAMES))
    assert "because of matmul" in other.levers["fused_attention"]["note"]
    assert same(other.out[:3], plain.out[:3])


def test_weights_used_twice_and_without_gradients(tmp_path):
    used = STYLES["manual"].replace("self.drop(att)", "att; self.seen = att.detach().mean()")
    half = STYLES["manual"].replace(
        "att = F.softmax", "torch.set_grad_enabled(False); att = F.softmax"
    )
    half = half.replace("y = (att", "torch.set_grad_enabled(True); y = (att")
    for style in (used, half):
        code = model(style)
        plain, other = run(tmp_path, code), run(tmp_path, code, ("fused_attention", NAMES))
        assert other.refusal is None, other.refusal
        assert distance(other.out[:3], plain.out[:3]) <= 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("q.data = q.data; q.mul_(1.0)", "in place"),
        ("att = Own.apply(att)", "out of sight"),
    ],
)
def test_refuses_what_it_cannot_follow(tmp_path, change, why):
    own = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
"""
    style = (
        STYLES["manual"]
        .replace("att = self.drop(att)", change)
        .replace("for y in qkv", "for y in map(torch.clone, qkv)")
    )
    assert why in run(tmp_path, own + model(style), ("fused_attention", NAMES)).refusal


@pytest.mark.parametrize("kind", ["Llama", "Bert"])
def test_hugging_face_in_16_bits(tmp_path, kind):
    code = """
        import transformers
        sizes = dict(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        quiet = dict(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0) if KIND == "Bert" else {}
        config = getattr(transformers, KIND + "Config")(attn_implementation="eager", **sizes, **quiet)
        model = getattr(transformers, KIND + "Model")(config).train()
        mask = torch.ones(2, 24, dtype=torch.long)
        mask[1, PADDING] = 0
        ids = torch.randint(99, (2, 24))
        y = model(input_ids=ids, attention_mask=mask).last_hidden_state
        y.square().mean().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        with torch.autocast("cpu", torch.bfloat16):
            seen = model(input_ids=ids, attention_mask=mask, output_attentions=True)
        out = [y.detach(), grads, seen.last_hidden_state.detach(), [a.detach() for a in seen.attentions]]
    """
    path = "layers.{}.self_attn" if kind == "Llama" else "encoder.layer.{}.attention.self"
    names = [f"{kind}Model." + path.format(i) for i in (0, 1)]
    plain = run(tmp_path, code, KIND=kind, PADDING=slice(15, None))
    fused = run(
        tmp_path, code, ("fused_attention", {"modules": names}), KIND=kind, PADDING=slice(15, None)
    )
    assert fused.refusal is None, fused.refusal
    assert fused.levers["fused_attention"]["applied"] == 2
    assert distance(fused.out[0], plain.out[0]) <= 1e-6
    assert distance(fused.out[1], plain.out[1]) <= 1e-6
    assert fused.out[2].isfinite().all() and distance(fused.out[2], plain.out[2]) <= 2e-2
    assert distance(fused.out[3], plain.out[3]) <= 2e-2
