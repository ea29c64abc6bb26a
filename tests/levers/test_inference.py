"""Levers of jobs that infer, on the CPU: what they compute, and what they refuse."""

import pytest
import torch
from torch import nn

from tests.support.levers import distance, run

NET = """
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self, width=256, depth=5):
            super().__init__()
            self.stem = nn.Linear(64, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Net().eval()
    batches = [torch.randn(6, 64) for _ in range(3)]
"""
INFER = NET + "    out = [model(x) for x in batches]\n"
QUIET = NET + "    with torch.no_grad(): out = [model(x) for x in batches]\n"
BLOCKS = [f"Net.blocks.{index}" for index in range(5)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain"), INFER).out


def test_no_graph_is_exact_and_refuses_a_backward_pass(tmp_path, plain):
    found = run(tmp_path, INFER, ("inference_mode", {}))
    assert found.levers["inference_mode"]["applied"] == 3
    assert all(torch.equal(a, b) for a, b in zip(found.out, plain, strict=True))
    assert not any(t.requires_grad for t in found.out) and plain[0].requires_grad
    # What the model gave may be changed in place.
    code = INFER + "    out[0].add_(1)\n    out[0][0] = 0\n"
    assert run(tmp_path, code, ("inference_mode", {})).out[0][0].eq(0).all()
    code = INFER + "    out[0].sum().backward()\n"
    assert "calls backward" in run(tmp_path, code, ("inference_mode", {})).refusal
    quiet = run(tmp_path, QUIET, ("inference_mode", {})).levers["inference_mode"]
    assert quiet["applied"] == 0 and "gradients on" in quiet["note"]


@pytest.mark.parametrize("dtype, cast", [("bf16", "bfloat16"), ("fp16", "half")])
def test_half_weights_are_torchs_own(tmp_path, dtype, cast):
    mine = run(tmp_path, QUIET, ("half_weights", {"dtype": dtype}))
    code = NET.replace(".eval()", f".{cast}().eval()")
    code += f"    with torch.no_grad(): out = [model(x.{cast}()).float() for x in batches]\n"
    theirs = run(tmp_path, code)
    assert mine.levers["half_weights"]["applied"] == 1
    assert all(t.dtype == torch.float32 for t in mine.out)
    assert all(torch.equal(a, b) for a, b in zip(mine.out, theirs.out, strict=True))


def test_half_weights_meet_what_a_model_makes_in_fp32(tmp_path):
    code = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.time = nn.Linear(64, 64)
                self.register_buffer("inv_freq", torch.arange(8) / 7, persistent=False)

            def forward(self, x):
                angles = torch.arange(64, dtype=torch.float32).sin()
                return x + self.time(angles), self.inv_freq

        model = Net().eval()
        with torch.no_grad():
            out = model(torch.randn(2, 64))
    """
    found = run(tmp_path, code, ("half_weights", {"dtype": "bf16"}))
    assert torch.equal(found.out[1], torch.arange(8) / 7)  # frequencies stay in fp32
    assert distance(found.out[0], run(tmp_path, code).out[0]) < 0.01


def test_a_model_that_the_script_cast_itself_is_left_alone(tmp_path):
    code = NET.replace(".eval()", ".bfloat16().eval()")
    code += "    with torch.no_grad(): out = [model(x.bfloat16()) for x in batches]\n"
    found = run(tmp_path, code, ("half_weights", {"dtype": "fp16"}))
    assert found.levers["half_weights"]["applied"] == 0
    assert all(t.dtype == torch.bfloat16 for t in found.out)


def test_streamed_weights_are_bitwise_the_same(tmp_path, plain):
    for modules in (BLOCKS, BLOCKS[2:], BLOCKS[1:2]):
        found = run(tmp_path, INFER, ("stream_weights", {"modules": modules}))
        assert found.levers["stream_weights"]["applied"] == len(modules)
        assert all(torch.equal(a, b) for a, b in zip(found.out, plain, strict=True))


def test_streamed_weights_follow_what_the_script_does_to_them(tmp_path):
    code = (
        NET
        + """
    with torch.no_grad():
        model(batches[0])
        model.blocks[0].up.weight.mul_(2)
        model.blocks[4].up.bias.add_(1)
        model.blocks[2] = Block(256)
        model.blocks[3].down.weight = nn.Parameter(torch.ones(256, 512))
        a = model(batches[0])
        state = {k: v.clone() for k, v in model.state_dict().items()}
        model.double()
        b = model(batches[0].double())
    out = [a, b, *state.values()]
    """
    )
    found = run(tmp_path, code, ("stream_weights", {"modules": BLOCKS}))
    same = run(tmp_path, code).out
    assert all(torch.equal(a, b) for a, b in zip(found.out, same, strict=True))


def test_streamed_weights_do_not_keep_a_model_alive(tmp_path):
    code = (
        INFER
        + """
    import gc, weakref
    alive = weakref.ref(model.blocks[0])
    del model
    gc.collect()
    out = alive() is None
    """
    )
    assert run(tmp_path, code, ("stream_weights", {"modules": BLOCKS})).out is True


def test_shared_weights_and_recurrent_layers(tmp_path):
    code = NET + "    model.blocks[1].up.weight = model.blocks[0].up.weight\n"
    code += "    with torch.no_grad(): out = [model(x) for x in batches]\n"
    found = run(tmp_path, code, ("stream_weights", {"modules": BLOCKS}))
    assert all(torch.equal(a, b) for a, b in zip(found.out, run(tmp_path, code).out, strict=True))
    code = "model = nn.Sequential(nn.LSTM(8, 8))\nout = model(torch.randn(3, 2, 8))\n"
    found = run(tmp_path, code, ("stream_weights", {"modules": ["Sequential.0"]}))
    assert "recurrent" in found.refusal


def test_which_modules_a_plan_names():
    from oomph.levers._shared.streamed_weights import matching

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(1, 1) for _ in range(2))

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

    net, wrapper = Net(), Wrapper()
    assert matching(net, ["Net.blocks.1"]) == {"Net.blocks.1": net.blocks[1]}
    # The model that is called is held by what is moved, or holds it.
    assert matching(wrapper, ["Net.blocks.1"]) == {"Net.blocks.1": wrapper.net.blocks[1]}
    assert matching(net, ["Wrapper.net.blocks.1"]) == {"Wrapper.net.blocks.1": net.blocks[1]}
    assert matching(net, ["Other.layers.1"]) == {}


def test_int8_weights_are_their_reference(tmp_path):
    from oomph.levers import int8_linear
    from oomph.levers._shared import quantized_linear

    torch.manual_seed(0)
    linear = nn.Linear(512, 384)
    x = torch.randn(2, 7, 512)
    layer = int8_linear.QuantizedLinear(linear, "weight_only")
    # Each weight is within half a step of its scale, and the product is that of the rounded ones.
    reference = layer.q.float() * layer.scale[:, None]
    assert (reference - linear.weight).abs().le(layer.scale[:, None] * 0.5001).all()
    assert torch.equal(layer(x), nn.functional.linear(x, reference, linear.bias))
    assert layer.q.nbytes + layer.scale.nbytes <= 0.51 * 2 * linear.weight.numel()
    # In parts as at once.
    before, quantized_linear.AT_ONCE = quantized_linear.AT_ONCE, 100 * 512 * 4
    assert distance(layer(x), nn.functional.linear(x, reference, linear.bias)) < 1e-6
    quantized_linear.AT_ONCE = before
    # A cast leaves the scales in fp32.
    cast = int8_linear.QuantizedLinear(linear, "weight_only").bfloat16()
    assert cast.scale.dtype == torch.float32 and torch.equal(cast.scale, layer.scale)
    narrow = nn.functional.linear(x.bfloat16(), reference.bfloat16(), linear.bias.bfloat16())
    assert torch.equal(cast(x.bfloat16()), narrow)


def test_rounded_layers_load_and_save_weights(tmp_path, plain):
    code = (
        NET
        + """
    state = {k: v * 1.5 for k, v in model.state_dict().items()}
    with torch.no_grad():
        model(batches[0])
        model.load_state_dict(state)
        out = [model(x) for x in batches]
    assert model.state_dict().keys() == state.keys()
    try:
        model.load_state_dict({k: v for k, v in state.items() if k != "head.weight"})
        raise SystemExit("a missing weight was not noticed")
    except RuntimeError as error:
        assert "head.weight" in str(error)
    """
    )
    found = run(tmp_path, code, ("int8_linear", {}))
    assert 0 < distance(found.out, run(tmp_path, code).out) < 0.02
    assert distance(found.out, plain) > 0.1


def test_what_is_written_to_rounded_weights_counts(tmp_path):
    code = (
        NET
        + """
    with torch.no_grad():
        model(batches[0])
        nn.init.ones_(model.head.weight)
        model.blocks[0].up.weight.data[0] = 3
        model.blocks[1].up.weight.sum()
        out = [model(x) for x in batches]
    """
    )
    same = run(tmp_path, code).out
    for more in ([], [("stream_weights", {"modules": BLOCKS})]):
        found = run(tmp_path, code, ("int8_linear", {}), *more)
        assert 0 < distance(found.out, same) < 0.02


@pytest.mark.parametrize("rows", [1, 40])
def test_dynamic_int8_multiplies_integers(rows):
    from oomph.levers._shared.quantized_linear import QuantizedLinear

    torch.manual_seed(0)
    linear = nn.Linear(512, 384)
    x = torch.randn(rows, 512)
    layer = QuantizedLinear(linear, "dynamic")
    scale = x.abs().amax(1, keepdim=True) / 127
    q = (x / scale).round().long()
    exact = (q @ layer.q.long().t()).float() * scale * layer.scale + linear.bias
    assert distance(layer(x), exact) < 1e-6
    assert distance(layer(x), linear(x)) < 0.02


def test_int8_linear_on_a_model(tmp_path, plain):
    found = run(tmp_path, QUIET, ("int8_linear", {"kind": "weight_only"}))
    report = found.levers["int8_linear"]
    # The stem has 64 inputs: its scales would weigh too much.
    assert report["applied"] == 11 and "0.50" in report["note"]
    assert 0 < distance(found.out, plain) < 0.02
    both = [("half_weights", {"dtype": "bf16"}), ("int8_linear", {"kind": "dynamic"})]
    found = run(tmp_path, QUIET, *both)
    assert found.levers["int8_linear"]["applied"] == 11 and distance(found.out, plain) < 0.05
    streamed = run(tmp_path, QUIET, *both, ("stream_weights", {"modules": BLOCKS}))
    assert all(torch.equal(a, b) for a, b in zip(streamed.out, found.out, strict=True))


def test_int8_leaves_tied_weights_and_attention_alone(tmp_path):
    code = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(100, 256)
                layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
                self.encoder = nn.TransformerEncoder(layer, 2)
                self.head = nn.Linear(256, 100, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, x):
                return self.head(self.encoder(self.embed(x)))

        model = Net().eval()
        with torch.no_grad():
            out = model(torch.arange(12).view(2, 6))
    """
    found = run(tmp_path, code, ("int8_linear", {}))
    assert found.levers["int8_linear"]["applied"] == 4
    assert "share their weights with an embedding: 1" in found.levers["int8_linear"]["note"]
    assert distance(found.out, run(tmp_path, code).out) < 0.02


def test_batches_in_parts(tmp_path, plain):
    for parts in (2, 4, 100):
        found = run(tmp_path, QUIET, ("split_batch", {"parts": parts}))
        assert found.levers["split_batch"]["applied"] == 3
        assert distance(found.out, plain) < 1e-6


@pytest.mark.parametrize(
    "forward, why",
    [
        ("return x.mean()", "no dimension of samples"),
        ("return x @ x.t()", "compares the samples"),
        ("return object()", "cannot be joined"),
    ],
)
def test_batches_that_cannot_be_split(tmp_path, forward, why):
    code = f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(5, 5)
            def forward(self, x):
                x = self.layer(x)
                {forward}
        with torch.no_grad():
            out = Net()(torch.randn(8, 5))
    """
    assert why in run(tmp_path, code, ("split_batch", {"parts": 2})).refusal


def test_a_batch_of_outputs_of_all_kinds(tmp_path):
    code = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)
            def forward(self, x, table, scale=None):
                # As wide as a part is long, by chance.
                return {"a": (self.layer(x) * scale, None), "b": [x[:, :2] + table, "name"]}
        with torch.no_grad():
            out = Net()(torch.randn(4, 4), torch.ones(2), scale=torch.arange(4.0)[:, None])
            out = [out["a"][0], out["b"][0]]
    """
    found = run(tmp_path, code, ("split_batch", {"parts": 2}))
    assert found.refusal is None
    # Not to the bit: a product of fewer rows may be computed in another order.
    assert distance(found.out, run(tmp_path, code).out) < 1e-6


def test_checkpoints_stay_in_host_memory():
    from oomph.levers.load_on_cpu import _goes_to_gpu, _is_gpu, _is_state

    assert _goes_to_gpu("cuda:1", "cpu") and _goes_to_gpu(None, "cuda:0")
    assert _goes_to_gpu({"cuda:0": "cuda:1"}, "cuda:0") and _goes_to_gpu(
        torch.device("cuda"), "cpu"
    )
    assert not _goes_to_gpu({"cuda:0": "cpu"}, "cuda:0") and not _goes_to_gpu("cpu", "cuda:0")
    assert _is_gpu(0) and not _is_gpu("auto") and not _is_gpu(False)
    tensor = torch.zeros(1)
    assert _is_state({"w": tensor}) and _is_state({"model": {"w": tensor}, "epoch": 1})
    assert not _is_state({"model": nn.Linear(1, 1)}) and not _is_state([tensor])
    assert not _is_state({"epoch": 1}) and not _is_state(tensor)


GENERATE = """
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)  # so that one token stands out
    prompt = torch.randint(2, 128, (3, 7))
    with torch.no_grad():
        first = model(prompt)
    tokens = model.generate(prompt, max_new_tokens=12, do_sample=False)
    beams = model.generate(prompt, max_new_tokens=6, do_sample=False, num_beams=2)
    out = [first.logits.float(), tokens, beams]
"""


def test_generation(tmp_path):
    same = run(tmp_path, GENERATE).out
    names = [f"LlamaForCausalLM.model.layers.{index}" for index in range(3)]
    found = run(tmp_path, GENERATE, ("stream_weights", {"modules": names}), ("inference_mode", {}))
    assert found.levers["stream_weights"]["applied"] == 3
    assert all(torch.equal(a, b) for a, b in zip(found.out, same, strict=True))
    found = run(tmp_path, GENERATE, ("split_batch", {"parts": 3}))
    assert distance(found.out[0], same[0]) < 1e-5 and torch.equal(found.out[1], same[1])
    found = run(tmp_path, GENERATE, ("kv_cache", {"bits": 8}))
    assert found.levers["kv_cache"]["applied"] > 30
    # The prompt's pass is as it was; what follows reads rounded keys and values.
    assert torch.equal(found.out[0], same[0])
    assert (found.out[1] == same[1]).float().mean() > 0.8
    assert found.out[2].shape == same[2].shape  # beams reorder the cache
    found = run(tmp_path, GENERATE, ("half_weights", {"dtype": "bf16"}), ("int8_linear", {}))
    assert distance(found.out[0], same[0]) < 0.06 and found.levers["int8_linear"]["applied"] == 22


def test_the_cache_is_smaller_and_close(tmp_path):
    from oomph.levers.kv_cache import from_int8, to_int8

    torch.manual_seed(0)
    states = torch.randn(2, 3, 5, 64, dtype=torch.bfloat16)
    q, scale = to_int8(states)
    assert q.nbytes + scale.nbytes < 0.52 * states.nbytes
    assert (from_int8(q, scale) - states).abs().max() <= 0.02 * states.abs().max()
    assert torch.equal(from_int8(*to_int8(torch.zeros(1, 4))), torch.zeros(1, 4))


TIMM = """
    import timm
    torch.manual_seed(0)
    model = timm.create_model(NAME, pretrained=False, **OPTIONS).eval()
    for module in model.modules():  # as after training: statistics of its own
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
    out = [model(torch.randn(4, 3, 64, 64)) for _ in range(2)]
"""


@pytest.mark.parametrize(
    "name, options, blocks",
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 3, "embed_dim": 384, "num_heads": 6},
         [f"VisionTransformer.blocks.{i}" for i in range(3)]),
        ("convnext_atto", {}, [f"ConvNeXt.stages.{s}.blocks.{b}" for s in range(4) for b in range(2)]),
        ("efficientnet_lite0", {}, [f"EfficientNet.blocks.{s}.0" for s in range(1, 6)]),
    ],
)  # fmt: skip
def test_levers_on_models_of_timm(tmp_path, name, options, blocks):
    pytest.importorskip("timm", reason="pip install timm")
    names = dict(NAME=name, OPTIONS=options)
    plain = run(tmp_path, TIMM, **names).out
    no_graph = ("inference_mode", {})
    exact = run(tmp_path, TIMM, no_graph, ("stream_weights", {"modules": blocks}), **names)
    assert exact.levers["stream_weights"]["applied"] == len(blocks)
    assert all(torch.equal(a, b) for a, b in zip(exact.out, plain, strict=True))
    split = run(tmp_path, TIMM, no_graph, ("split_batch", {"parts": 2}), **names)
    assert split.levers["split_batch"]["applied"] == 2 and distance(split.out, plain) < 1e-5
    half = run(tmp_path, TIMM, no_graph, ("half_weights", {"dtype": "bf16"}), **names)
    assert 0 < distance(half.out, plain) < 0.05
    for kind in ("weight_only", "dynamic"):
        int8 = run(tmp_path, TIMM, no_graph, ("int8_linear", {"kind": kind}), **names)
        assert int8.levers["int8_linear"]["applied"] > 0 and distance(int8.out, plain) < 0.1
