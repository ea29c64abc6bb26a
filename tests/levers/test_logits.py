"""`chunked_logits`: what a script makes of logits is the same, and they are never there as a whole."""

import pytest
import torch

from tests.support.levers import distance, run

SETUP = """
    from oomph.levers import chunked_logits as lever
    lever.VOCABULARY, lever.MANY, lever.AT_ONCE, lever.FEWEST_ROWS = 16, 400, 40 * 4 * 3, 2
    sizes = []
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.inner = nn.Embedding(40, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 40)
        def forward(self, x):
            return self.head(torch.tanh(self.inner(self.tokens(x))))
    torch.manual_seed(1)
    model = Model().eval()
    linear = F.linear
    def seen(x, weight, bias=None):
        if weight.shape[0] == 40: sizes.append(x.numel() // 8)
        return linear(x, weight, bias)
    F.linear = seen
    x = torch.randint(40, (3, 7))
    y = torch.randint(40, (3, 7))
    y[0, :5] = -100
    kept = y.clamp(min=0)
    weight = torch.rand(40)
    torch.set_grad_enabled(False)
"""

END = """
    def made(value):
        return [made(v) for v in value] if isinstance(value, (list, tuple)) else value.cpu()
    out = [made(out), torch.tensor(sizes)]
"""

CHUNKED = {
    "last": "out = model(x)[:, -1]",
    "last of one": "out = model(x)[0, -1, :]",
    "some": "out = model(x)[:, 2:5].softmax(-1) + 1",
    "greedy": "out = model(x)[:, -1, :].argmax(dim=-1, keepdim=True).double()",
    "argmax": "out = model(x).argmax(-1).double()",
    "max": "m = model(x).max(dim=-1); out = [m.values, m.indices.double()]",
    "top": "t = (model(x) / 0.7).softmax(-1).topk(3); out = [t.values, t.indices.double()]",
    "logsumexp": "out = torch.logsumexp(2 * model(x), dim=2, keepdim=True)",
    "loss": "out = F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
    "sum": "out = F.cross_entropy(model(x).view(-1, 40), y.view(-1), reduction='sum')",
    "none": "out = F.cross_entropy(model(x).view(-1, 40).float(), y.view(-1), reduction='none')",
    "weights": "out = F.cross_entropy(model(x).view(-1, 40), y.view(-1), weight, ignore_index=-100)",
    "smooth": "out = nn.CrossEntropyLoss(weight, label_smoothing=0.2)(model(x).view(-1, 40), y.view(-1))",
    "shifted": "logits = model(x)[..., :-1, :].contiguous(); out = F.cross_entropy(logits.view(-1, logits.size(-1)), y[..., 1:].reshape(-1))",
    "nll": "out = F.nll_loss(F.log_softmax(model(x), dim=-1).view(-1, 40), y.view(-1))",
    "gathered": "out = torch.log_softmax(model(x), -1).gather(-1, kept[..., None])[..., 0]",
    "picked": "out = F.log_softmax(model(x), -1).view(-1, 40)[torch.arange(21), kept.view(-1)]",
    "capped": "out = (torch.tanh(model(x) / 30) * 30).argmax(-1).double()",
    "several": "l = model(x); out = [l.argmax(-1).double(), F.cross_entropy(l.view(-1, 40), y.view(-1)), l[:, -1]]",
    "parts": "out = torch.cat([model(x[:2]), model(x[2:].expand(2, -1))]).argmax(-1).double()",
    "autocast": "\n    with torch.autocast('cpu', torch.bfloat16): l = model(x)\n    assert l.dtype == torch.bfloat16\n    out = l.float().logsumexp(-1)",
    "from the end": "out = F.log_softmax(model(x), -1).view(-1, 40)[torch.arange(21), kept.view(-1) - 40]",
    "a temperature that changes": "t = torch.tensor(2.0); l = model(x) / t; t.mul_(3); out = l.logsumexp(-1)",
    "16 bits": "model.bfloat16(); out = model(x).float().logsumexp(-1)",
}
"""What a script makes of logits of 21 rows; none of it needs all of them at once."""

WHOLE = {
    "classes second": "out = F.cross_entropy(model(x).transpose(1, 2), y)",
    "probabilities": "out = F.cross_entropy(model(x).view(-1, 40), F.one_hot(kept, 40).float().view(-1, 40))",
    "as they are": "out = model(x) + torch.ones(40)",
    "sampled": "torch.manual_seed(3); out = torch.multinomial(model(x).softmax(-1).view(-1, 40), 1).double()",
    "columns": "out = model(x)[..., 3:9]",
    "sorted": "out = model(x).sort(-1).values",
    "compared": "l = model(x); out = (l == l.max(-1, keepdim=True).values).double().sum(-1)",
    "only the first": "l = model(x); l[l < l.topk(1).values] = -torch.inf; out = l.softmax(-1)",
    "moved": "out = model(x).cpu().numpy().tolist(); out = torch.tensor(out)",
}


@pytest.mark.parametrize("case", [*CHUNKED, *WHOLE])
def test_what_is_made_of_logits(tmp_path, case):
    code = SETUP + "\n    " + (CHUNKED | WHOLE)[case] + END
    plain, _ = run(tmp_path, code).out
    found = run(tmp_path, code, ("chunked_logits", {}))
    assert found.refusal is None, found.refusal
    changed, sizes = found.out
    assert distance(changed, plain) < 1e-6
    report = found.levers["chunked_logits"]
    if case in CHUNKED:
        assert report["applied"] > 0 and report["note"] is None and max(sizes) < 21
    else:
        # Those that parts were read of are made in the same parts, so that they can be compared.
        parted = case in ("compared", "only the first")
        assert report["applied"] == 0 and (max(sizes) == 21) is not parted


WRITES = {
    "a slice, then all": "l = model(x); last = l[:, -1]; last[:, :5] = -9; out = [l * 1, last * 1]",
    "all, then a slice": "l = model(x); last = l[:, -1]; l[..., 3] = 7; out = [l * 1, last.argmax(-1).double(), last * 1]",
    "a copy": "l = model(x); p = l.softmax(-1); l.zero_(); out = [l * 1, p.argmax(-1).double()]",
    "alone": "last = model(x)[:, -1]; last /= 2; last.masked_fill_(last < 0, -1); out = last",
    "casts": "l = model(x); f = l.float(); f.add_(1); out = l * 1",
    "views": "l = model(x); v = l.view(-1, 40); v[3] = 0; out = F.cross_entropy(l.view(-1, 40), y.view(-1))",
}


@pytest.mark.parametrize("case", WRITES)
def test_what_is_written_to_logits(tmp_path, case):
    code = SETUP + "\n    " + WRITES[case] + END
    plain = run(tmp_path, code).out[0]
    found = run(tmp_path, code, ("chunked_logits", {}))
    assert found.refusal is None and distance(found.out[0], plain) < 1e-6


def test_what_a_head_was_given_must_stay(tmp_path):
    code = (
        SETUP + "    h = torch.randn(3, 7, 8); l = model.head(h); h.zero_(); out = l.argmax(-1)\n"
    )
    found = run(tmp_path, code, ("chunked_logits", {}))
    assert "changed in place" in found.refusal


@pytest.mark.parametrize("change", ["weight.mul_(2)", "bias = None"])
def test_the_weights_of_a_head_must_stay(tmp_path, change):
    code = SETUP + f"    l = model(x); model.head.{change}; out = l.argmax(-1)\n"
    found = run(tmp_path, code, ("chunked_logits", {}))
    assert "head's weights were changed" in found.refusal


def test_heads_that_are_left_alone(tmp_path):
    code = SETUP + "    for _ in range(5): out = model(x) + torch.ones(40)\n"
    report = run(tmp_path, code, ("chunked_logits", {})).levers["chunked_logits"]
    assert report["applied"] == 0 and "computed whole" in report["note"]
    graph = SETUP + "    torch.set_grad_enabled(True); out = model(x)[:, -1].detach()\n"
    report = run(tmp_path, graph, ("chunked_logits", {})).levers["chunked_logits"]
    assert report["applied"] == 0 and "without gradients" in report["note"]
    found = run(tmp_path, graph, ("inference_mode", {}), ("chunked_logits", {}))
    assert found.levers["chunked_logits"]["applied"] == 1
    streamed = (
        "    from oomph.levers._shared import streamed_weights; streamed_weights.SMALLEST = 0\n"
    )
    streamed += SETUP + "    out = model(x)[:, -1].cpu()\n"
    stream = ("stream_weights", {"modules": ["Model.inner", "Model.head"]})
    found = run(tmp_path, streamed, ("chunked_logits", {}), stream)
    assert found.levers["stream_weights"]["applied"] == 2
    assert found.levers["chunked_logits"]["applied"] == 0
    assert distance(found.out, run(tmp_path, streamed).out) == 0


HUGGING = """
    from oomph.levers import chunked_logits as lever
    lever.VOCABULARY, lever.MANY, lever.AT_ONCE, lever.FEWEST_ROWS = 512, 6400, 1, 4
    import transformers
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=640, n_positions=64, n_embd=256, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(640, (4, 16))
    with torch.no_grad():
        loss = model(ids, labels=ids).loss if WITH_LABELS else torch.ones(1)
        logits = model(ids).logits
        shift = logits[..., :-1, :].contiguous()
        by_hand = F.cross_entropy(shift.view(-1, shift.size(-1)), ids[..., 1:].reshape(-1))
        last = model(ids).logits[:, -1, :].softmax(-1)
    tokens = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    out = [loss, by_hand, last, tokens.double()]
"""


def test_hugging_face_and_other_levers(tmp_path):
    # Once, before processes are forked.
    pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    plain = run(tmp_path, HUGGING, WITH_LABELS=True).out
    found = run(tmp_path, HUGGING, ("chunked_logits", {}), WITH_LABELS=True)
    assert found.levers["chunked_logits"]["applied"] == 3
    assert found.levers["chunked_logits"]["note"] is None
    assert distance(found.out, plain) < 1e-5
    half = ("half_weights", {"dtype": "bf16"})
    narrow = run(tmp_path, HUGGING, half, WITH_LABELS=False).out
    split = ("split_batch", {"parts": 2})
    found = run(tmp_path, HUGGING, half, split, ("chunked_logits", {}), WITH_LABELS=False)
    assert found.refusal is None and found.levers["split_batch"]["applied"] == 2
    assert found.levers["chunked_logits"]["applied"] >= 2
    assert found.levers["chunked_logits"]["note"] is None
    assert distance(found.out[:3], narrow[:3]) < 0.01
    # An untied head in 8 bits waits as well.
    untied = HUGGING.replace("n_head=4", "n_head=4, tie_word_embeddings=False")
    int8 = run(tmp_path, untied, ("int8_linear", {}), WITH_LABELS=True)
    found = run(tmp_path, untied, ("int8_linear", {}), ("chunked_logits", {}), WITH_LABELS=True)
    assert found.levers["chunked_logits"]["applied"] == 3
    assert distance(found.out[:3], int8.out[:3]) < 1e-5
    assert isinstance(found.out[2], torch.Tensor)
