"""Jobs written on 2026-11-27, later than `fresh5.py`, of other kinds and larger, by an author who has not seen the clocks.

`python fresh6.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

import builders
from builders import hf, lm, masked, transformers_model
from training import main


def nothing(torch, m, b):
    return m(b)


def normal(*size):
    return lambda torch: torch.randn(size, device="cuda")


def words(count, length, vocabulary):
    return lambda torch: torch.randint(0, vocabulary, (count, length), device="cuda")


def next_word(torch, m, x):
    return torch.nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def module(make, *rest, **kw):
    """A plain module whose parameters are drawn on the GPU."""

    def on_gpu(torch):
        with torch.device("cuda"):
            return make(torch)

    return builders.module(on_gpu, *rest, **kw)


def accumulated(spec, parts):
    """`spec` with steps of `parts` batches, whose gradients add up."""

    def build():
        import torch

        m, batch, lossf = spec["build"]()

        def loss(given):
            for part in given[:-1]:
                value = lossf(part) / parts
                with torch.autocast("cuda", enabled=False):
                    value.backward()
            return lossf(given[-1]) / parts

        return m, lambda: [batch() for _ in range(parts)], loss

    return dict(spec, build=build)


def timm_model(name, bs, res=224, opt="adamw", amp="bf16", cl=False, **kw):
    """A model of timm with labelled pictures whose labels are smoothed."""

    def build():
        import timm
        import torch

        with torch.device("cuda"):
            m = timm.create_model(name, num_classes=1000, **kw).train()
        form = torch.channels_last if cl else torch.contiguous_format
        m = m.to(memory_format=form)

        def batch():
            x = torch.randn(bs, 3, res, res, device="cuda").to(memory_format=form)
            return x, torch.randint(0, 1000, (bs,), device="cuda")

        def loss(b):
            return torch.nn.functional.cross_entropy(m(b[0]), b[1], label_smoothing=0.1)

        return m, batch, loss

    return dict(build=build, opt=opt, amp=amp)


def preferences(torch):
    """A language model that is tuned by preferences, beside a frozen copy of itself (DPO)."""
    import transformers
    from torch import nn

    class Preferences(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.LlamaConfig(
                vocab_size=32_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=20, num_attention_heads=16,
                num_key_value_heads=4, use_cache=False,
            )  # fmt: skip
            self.tuned = transformers.LlamaForCausalLM(config)
            self.frozen = transformers.LlamaForCausalLM(config).bfloat16().requires_grad_(False)

        def likelihood(self, model, x):
            logits = model(input_ids=x).logits[:, :-1].float()
            return logits.log_softmax(-1).gather(-1, x[:, 1:, None]).sum((1, 2))

        def forward(self, x):
            with torch.no_grad():
                before = self.likelihood(self.frozen, x)
            return self.likelihood(self.tuned, x) - before

    return Preferences()


def preferred(torch, m, x):
    """The first half of `x` is preferred to the second."""
    better, worse = m(x).chunk(2)
    return -torch.nn.functional.logsigmoid(0.1 * (better - worse)).mean()


def latent_painter(torch):
    """The U-Net of a latent diffusion model: residual blocks, and attention to itself and to a text."""
    from torch import nn
    from torch.nn import functional as F

    class Residual(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.norm, self.other = nn.GroupNorm(32, a), nn.GroupNorm(32, b)
            self.one, self.two = nn.Conv2d(a, b, 3, 1, 1), nn.Conv2d(b, b, 3, 1, 1)
            self.time = nn.Linear(1024, b)
            self.short = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

        def forward(self, x, t):
            y = self.one(F.silu(self.norm(x))) + self.time(F.silu(t))[:, :, None, None]
            return self.short(x) + self.two(F.silu(self.other(y)))

    class Attention(nn.Module):
        def __init__(self, width, given, heads=8):
            super().__init__()
            self.heads, self.norm = heads, nn.LayerNorm(width)
            self.q, self.kv = nn.Linear(width, width, False), nn.Linear(given, 2 * width, False)
            self.out = nn.Linear(width, width)

        def forward(self, x, text=None):
            y = self.norm(x)
            k, v = self.kv(y if text is None else text).chunk(2, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(y), k, v))
            return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class Looking(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
            self.own, self.cross = Attention(width, width), Attention(width, 768)
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

        def forward(self, x, text):
            y = self.enter(x).flatten(2).mT
            y = self.cross(self.own(y), text)
            value, gate = self.up(self.norm(y)).chunk(2, -1)
            y = y + self.down(value * F.gelu(gate))
            return x + self.leave(y.mT.reshape_as(x))

    class Painter(nn.Module):
        def __init__(self, widths=(256, 512, 768)):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 1024))
            self.enter = nn.Conv2d(4, widths[0], 3, 1, 1)
            pairs = list(zip((widths[0], *widths), widths))
            self.down = nn.ModuleList([nn.ModuleList([Residual(a, b), Looking(b), nn.Conv2d(b, b, 3, 2, 1)]) for a, b in pairs])  # fmt: skip
            self.middle, self.looking = Residual(widths[-1], widths[-1]), Looking(widths[-1])
            self.up = nn.ModuleList([nn.ModuleList([Residual(2 * b, a), Looking(a)]) for a, b in pairs[::-1]])  # fmt: skip
            self.out = nn.Sequential(nn.GroupNorm(32, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 4, 3, 1, 1))  # fmt: skip

        def forward(self, x, t, text):
            angles = t[:, None] * torch.exp(torch.linspace(0, -9, 128, device=x.device))
            t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
            x, kept = self.enter(x), []
            for residual, looking, shrink in self.down:
                x = looking(residual(x, t), text)
                kept.append(x)
                x = shrink(x)
            x = self.looking(self.middle(x, t), text)
            for residual, looking in self.up:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
                x = looking(residual(torch.cat([x, kept.pop()], 1), t), text)
            return self.out(x)

    return Painter()


def latents(torch):
    return torch.randn(12, 4, 64, 64, device="cuda"), torch.randn(12, 77, 768, device="cuda")


def noised(torch, m, b):
    x, text = b
    t, noise = torch.rand(len(x), device="cuda"), torch.randn_like(x)
    kept = torch.cos(t * 1.57)[:, None, None, None]
    y = m(kept * x + (1 - kept**2).sqrt() * noise, 1000 * t, text)
    return torch.nn.functional.mse_loss(y.float(), noise)


def lesions(torch):
    """Organs in scans, a U-Net with strides, leaky units and answers at three sizes (as nnU-Net is)."""
    from torch import nn

    def conv(a, b, stride=1):
        return nn.Sequential(nn.Conv3d(a, b, 3, stride, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01))  # fmt: skip

    class Lesions(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256, 320), classes=4):
            super().__init__()
            self.down = nn.ModuleList([nn.Sequential(conv(a, b, 2 if a > 1 else 1), conv(b, b)) for a, b in zip((1, *widths), widths)])  # fmt: skip
            pairs = list(zip(widths[1:], widths))[::-1]
            self.grow = nn.ModuleList([nn.ConvTranspose3d(b, a, 2, 2) for b, a in pairs])
            self.up = nn.ModuleList([nn.Sequential(conv(2 * a, a), conv(a, a)) for _, a in pairs])
            self.heads = nn.ModuleList([nn.Conv3d(a, classes, 1) for _, a in pairs[-3:]])

        def forward(self, x):
            kept, outs = [], []
            for stage in self.down:
                x = stage(x)
                kept.append(x)
            x = kept.pop()
            for grow, stage in zip(self.grow, self.up):
                x = stage(torch.cat([grow(x), kept.pop()], 1))
                outs.append(x)
            return [head(y) for head, y in zip(self.heads, outs[-3:])]

    return Lesions()


def scans(torch):
    return torch.randn(2, 1, 128, 128, 96, device="cuda"), torch.randint(0, 4, (2, 128, 128, 96), device="cuda")  # fmt: skip


def overlap(torch, m, b):
    """Cross entropy and Dice at three sizes."""
    loss = 0
    for scale, y in zip((4, 2, 1), m(b[0])):
        target = b[1][:, ::scale, ::scale, ::scale]
        share = y.float().softmax(1)
        hot = torch.nn.functional.one_hot(target, 4).movedim(-1, 1).float()
        both, all_ = (share * hot).sum((2, 3, 4)), (share + hot).sum((2, 3, 4))
        dice = 1 - (2 * both / (all_ + 1e-5)).mean()
        loss = loss + (torch.nn.functional.cross_entropy(y, target) + dice) / scale
    return loss


def one_stage(torch):
    """Things in pictures from three scales at once: split stages, a pyramid up and down, separate heads."""
    from torch import nn

    def conv(a, b, window=1, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, window, stride, window // 2, bias=False), nn.BatchNorm2d(b), nn.SiLU(inplace=True))  # fmt: skip

    class Split(nn.Module):
        def __init__(self, a, b, count):
            super().__init__()
            self.enter, self.leave = conv(a, b), conv((2 + count) * b // 2, b)
            self.parts = nn.ModuleList([nn.Sequential(conv(b // 2, b // 2, 3), conv(b // 2, b // 2, 3)) for _ in range(count)])  # fmt: skip

        def forward(self, x):
            ys = list(self.enter(x).chunk(2, 1))
            for part in self.parts:
                ys.append(ys[-1] + part(ys[-1]))
            return self.leave(torch.cat(ys, 1))

    class Detector(nn.Module):
        def __init__(self, w=48, classes=80):
            super().__init__()
            self.stem = nn.Sequential(conv(3, w, 3, 2), conv(w, 2 * w, 3, 2), Split(2 * w, 2 * w, 2))  # fmt: skip
            self.three = nn.Sequential(conv(2 * w, 4 * w, 3, 2), Split(4 * w, 4 * w, 4))
            self.four = nn.Sequential(conv(4 * w, 8 * w, 3, 2), Split(8 * w, 8 * w, 4))
            self.five = nn.Sequential(conv(8 * w, 12 * w, 3, 2), Split(12 * w, 12 * w, 2))
            self.up4, self.up3 = Split(20 * w, 8 * w, 2), Split(12 * w, 4 * w, 2)
            self.shrink3, self.shrink4 = conv(4 * w, 4 * w, 3, 2), conv(8 * w, 8 * w, 3, 2)
            self.down4, self.down5 = Split(12 * w, 8 * w, 2), Split(20 * w, 12 * w, 2)
            heads = lambda out: nn.ModuleList([nn.Sequential(conv(k * w, 2 * w, 3), conv(2 * w, 2 * w, 3), nn.Conv2d(2 * w, out, 1)) for k in (4, 8, 12)])  # fmt: skip
            self.kinds, self.boxes = heads(classes), heads(4)

        def forward(self, x):
            a = self.three(self.stem(x))
            b = self.four(a)
            c = self.five(b)
            grow = lambda t: nn.functional.interpolate(t, scale_factor=2.0)
            b = self.up4(torch.cat([grow(c), b], 1))
            a = self.up3(torch.cat([grow(b), a], 1))
            b = self.down4(torch.cat([self.shrink3(a), b], 1))
            c = self.down5(torch.cat([self.shrink4(b), c], 1))
            rows = lambda heads: torch.cat([h(y).flatten(2) for h, y in zip(heads, (a, b, c))], 2).mT  # fmt: skip
            return rows(self.kinds), rows(self.boxes)

    return Detector()


def things(torch):
    """Pictures, and what each of the 8400 places is to tell: a kind (mostly none), a box."""
    kinds = (torch.rand(16, 8400, 80, device="cuda") < 0.001).float()
    return torch.rand(16, 3, 640, 640, device="cuda"), kinds, 8 * torch.rand(16, 8400, 4, device="cuda")  # fmt: skip


def focal(torch, m, b):
    x, kinds, boxes = b
    logits, y = (t.float() for t in m(x))
    share = logits.sigmoid()
    apart = torch.nn.functional.binary_cross_entropy_with_logits(logits, kinds, reduction="none")
    near = share * kinds + (1 - share) * (1 - kinds)
    loss = ((1 - near) ** 2 * apart).sum() / kinds.sum().clamp(min=1)
    y = torch.nn.functional.softplus(y)
    area = lambda t: (t[..., 0] + t[..., 2]) * (t[..., 1] + t[..., 3])
    inner, outer = torch.minimum(y, boxes), torch.maximum(y, boxes)
    either = area(y) + area(boxes) - area(inner)
    giou = area(inner) / (either + 1e-7) - (area(outer) - either) / (area(outer) + 1e-7)
    weight = kinds.amax(-1)
    return loss + ((1 - giou) * weight).sum() / weight.sum().clamp(min=1)


def spoken(torch):
    """Convolutions and five recurrent layers in both directions over spectrograms, for CTC."""
    from torch import nn

    class Spoken(nn.Module):
        def __init__(self, width=640):
            super().__init__()
            self.convs = nn.Sequential(
                nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
                nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            )  # fmt: skip
            self.body = nn.GRU(32 * 41, width, 5, batch_first=True, bidirectional=True)
            self.out = nn.Linear(2 * width, 29)

        def forward(self, x):
            y = self.convs(x).flatten(1, 2).mT
            return self.out(self.body(y)[0])

    return Spoken()


def speeches(torch):
    return torch.randn(16, 1, 161, 800, device="cuda"), torch.randint(1, 29, (16, 60), device="cuda")  # fmt: skip


def letters(torch, m, b):
    y = m(b[0]).float().log_softmax(-1).transpose(0, 1)
    lengths = torch.full((len(b[0]),), len(y)), torch.full((len(b[0]),), 60)
    return torch.nn.functional.ctc_loss(y, b[1], *lengths)


def potential(torch):
    """The energy of molecules by filters over distances (SchNet); forces are its derivative."""
    from torch import nn

    class Shifted(nn.Module):
        def forward(self, x):
            return nn.functional.softplus(x) - 0.6931

    class Potential(nn.Module):
        def __init__(self, width=128, depth=4, shells=64):
            super().__init__()
            self.kinds = nn.Embedding(20, width)
            self.register_buffer("centres", torch.linspace(0, 6, shells))
            line = lambda a, b: nn.Sequential(nn.Linear(a, b), Shifted(), nn.Linear(b, b))
            self.filters = nn.ModuleList([line(shells, width) for _ in range(depth)])
            self.enter = nn.ModuleList([nn.Linear(width, width, False) for _ in range(depth)])
            self.leave = nn.ModuleList([line(width, width) for _ in range(depth)])
            self.out = nn.Sequential(nn.Linear(width, width // 2), Shifted(), nn.Linear(width // 2, 1))  # fmt: skip

        def forward(self, places, kinds, source, target):
            x = self.kinds(kinds)
            far = (places[source] - places[target]).norm(dim=-1, keepdim=True)
            shells = torch.exp(-10 * (far - self.centres) ** 2)
            near = 0.5 * (torch.cos(far * 0.5236) + 1) * (far < 6)
            for filters, enter, leave in zip(self.filters, self.enter, self.leave):
                sent = enter(x)[source] * filters(shells) * near
                x = x + leave(torch.zeros_like(x).index_add(0, target, sent))
            return self.out(x).sum()

    return Potential()


def molecules(torch, count=128, atoms=24):
    """Molecules whose atoms all see each other: places, kinds, the edges' ends, the true forces."""
    at = torch.arange(count * atoms * (atoms - 1), device="cuda")
    target, other = at // (atoms - 1), at % (atoms - 1)
    other = other + (other >= target % atoms)
    source = target - target % atoms + other
    places = 2 * torch.randn(count * atoms, 3, device="cuda")
    kinds = torch.randint(0, 20, (count * atoms,), device="cuda")
    return places, kinds, source, target, torch.randn_like(places)


def forces(torch, m, b):
    places = b[0].requires_grad_()
    energy = m(places, *b[1:4])
    (slope,) = torch.autograd.grad(energy, places, create_graph=True)
    return torch.nn.functional.mse_loss(-slope, b[4]) + 1e-4 * energy**2


def walker(torch):
    """A soft actor and two critics, with slow copies of the critics."""
    import copy

    from torch import nn

    def perceptron(a, b):
        return nn.Sequential(nn.Linear(a, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, b))  # fmt: skip

    class Walker(nn.Module):
        def __init__(self, seen=17, done=6):
            super().__init__()
            self.actor = perceptron(seen, 2 * done)
            self.critics = nn.ModuleList([perceptron(seen + done, 1) for _ in range(2)])
            self.slow = copy.deepcopy(self.critics).requires_grad_(False)
            self.heat = nn.Parameter(torch.zeros(1))

        def act(self, x):
            mean, spread = self.actor(x).chunk(2, -1)
            normal = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
            raw = normal.rsample()
            y = raw.tanh()
            chance = normal.log_prob(raw) - torch.log(1 - y**2 + 1e-6)
            return y, chance.sum(-1, keepdim=True)

        def judge(self, critics, x, y):
            return torch.stack([critic(torch.cat([x, y], -1)) for critic in critics])

    return Walker()


def seen(torch):
    draw = lambda n: torch.randn(256, n, device="cuda")
    return draw(17), draw(6), draw(1), draw(17)


def soft_values(torch, m, b):
    x, y, reward, after = b
    heat = m.heat.exp()
    with torch.no_grad():
        torch._foreach_lerp_(list(m.slow.parameters()), list(m.critics.parameters()), 0.005)
        then, chance = m.act(after)
        value = m.judge(m.slow, after, then).amin(0) - heat * chance
        goal = reward + 0.99 * value
    loss = ((m.judge(m.critics, x, y) - goal) ** 2).mean()
    own, chance = m.act(x)
    m.critics.requires_grad_(False)
    loss = loss + (heat.detach() * chance - m.judge(m.critics, x, own).amin(0)).mean()
    m.critics.requires_grad_(True)
    return loss - (heat * (chance.detach() - 6)).mean()


def compiled_decoder(torch):
    """A decoder with root-mean-square norms and squared units, compiled."""
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.width = heads, width
            self.qkv, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
            self.up, self.down = nn.Linear(width, 4 * width, False), nn.Linear(4 * width, width, False)  # fmt: skip

        def forward(self, x):
            norm = lambda t: F.rms_norm(t, t.shape[-1:])
            q, k, v = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
            q, k, v = (t.transpose(1, 2) for t in (norm(q), norm(k), v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.relu(self.up(norm(x))).square())

    class Decoder(nn.Module):
        def __init__(self, vocabulary=50_304, width=768, depth=8, heads=6):
            super().__init__()
            self.words, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, False)  # fmt: skip
            self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])

        def forward(self, x):
            x = self.blocks(self.words(x))
            return 15 * torch.tanh(self.head(F.rms_norm(x, x.shape[-1:])).float() / 15)

    decoder = Decoder()
    decoder.compile()
    return decoder


def prefilled(torch):
    """A language model of 3 billion parameters in half precision reads prompts and tells each one's next word."""
    import transformers
    from torch import nn

    class Prefilled(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.Qwen2Config(
                vocab_size=151_936, hidden_size=2048, intermediate_size=11_008, num_hidden_layers=36, num_attention_heads=16,
                num_key_value_heads=2, tie_word_embeddings=True,
            )  # fmt: skip
            self.body = transformers.Qwen2ForCausalLM(config).bfloat16()

        def forward(self, x):
            return self.body(input_ids=x, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    return Prefilled()


def writing(torch):
    """A small language model draws twelve words after each of eight prompts."""
    import transformers
    from torch import nn

    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.Qwen2Config(
                vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                num_key_value_heads=2, tie_word_embeddings=True,
            )  # fmt: skip
            self.body = transformers.Qwen2ForCausalLM(config).bfloat16()
            self.body.generation_config.eos_token_id = None  # no text ends before the others

        def forward(self, x):
            return self.body.generate(x, attention_mask=torch.ones_like(x), do_sample=True, top_k=50, max_new_tokens=12, pad_token_id=0)  # fmt: skip

    return Writing()


def reranker(torch):
    """Pairs of question and text get a mark from an encoder with separate attention to content and places."""
    import transformers
    from torch import nn

    class Reranker(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.DebertaV2Config(
                vocab_size=128_100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, num_labels=1,
                relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
                position_biased_input=False, type_vocab_size=0,
            )  # fmt: skip
            self.body = transformers.DebertaV2ForSequenceClassification(config).bfloat16()

        def forward(self, x):
            return self.body(input_ids=x, attention_mask=torch.ones_like(x)).logits

    return Reranker()


def segment_encoder(torch):
    import timm

    return timm.create_model("samvit_base_patch16", num_classes=0)


JOBS = {
    "qwen2_1_5b_b1_2048_bf16": lambda: transformers_model(
        "Qwen2ForCausalLM", "Qwen2Config", 1, 2048, ckpt=True, vocab_size=151_936, hidden_size=1536, intermediate_size=8960,
        num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False,
    ),
    "llama_1b_pure_b4_1024": lambda: transformers_model(
        "LlamaForCausalLM", "LlamaConfig", 4, 1024, opt="adamw_fused", amp=None, ckpt=True, dtype="bfloat16", vocab_size=128_256,
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        tie_word_embeddings=True, use_cache=False,
    ),
    "phi_b4x4_512_bf16": lambda: accumulated(
        hf("PhiForCausalLM", "PhiConfig", lm(4, 512), vocab_size=51_200, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16, use_cache=False), 4
    ),
    "preferences_b8_512_bf16": lambda: module(preferences, words(8, 512, 32_000), preferred, opt="adamw", amp="bf16"),
    "mixtral_small_b4_512_bf16": lambda: hf(
        "MixtralForCausalLM", "MixtralConfig", lm(4, 512), vocab_size=32_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8,
        num_attention_heads=12, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, use_cache=False,
    ),
    "vit_huge_b24_bf16": lambda: timm_model("vit_huge_patch14_224", 24, opt="adamw_fused"),
    "convnextv2_tiny_b64_bf16_cl": lambda: timm_model("convnextv2_tiny", 64, cl=True),
    "mobilenetv4_m_b192_fp16_cl": lambda: timm_model("mobilenetv4_conv_medium", 192, opt="sgd", amp="fp16", cl=True),
    "latent_painter_b12_bf16": lambda: module(latent_painter, latents, noised, opt="adamw", amp="bf16"),
    "lesions_b2_fp16": lambda: module(lesions, scans, overlap, opt="sgd", amp="fp16"),
    "one_stage_b16_bf16": lambda: module(one_stage, things, focal, opt="sgd", amp="bf16"),
    "modernbert_mlm_b16_512_bf16": lambda: hf("ModernBertForMaskedLM", "ModernBertConfig", masked(16, 512)),
    "bart_base_b16_384_bf16": lambda: hf("BartForConditionalGeneration", "BartConfig", masked(16, 384), opt="adamw_fused", encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12),
    "spoken_b16": lambda: module(spoken, speeches, letters),
    "forces_b128": lambda: module(potential, molecules, forces),
    "mamba2_b2_512_bf16": lambda: hf("Mamba2ForCausalLM", "Mamba2Config", lm(2, 512), vocab_size=32_000, hidden_size=512, num_hidden_layers=8, num_heads=16, head_dim=64, state_size=64, n_groups=1, chunk_size=128, use_cache=False),
    "walker_b256": lambda: module(walker, seen, soft_values),
    "compiled_decoder_b8_1024_bf16": lambda: module(compiled_decoder, words(8, 1024, 50_304), next_word, opt="adamw_fused", amp="bf16"),
}  # fmt: skip
INFERENCE = {
    "infer_prefilled_3b_b2_2048": lambda: module(prefilled, words(2, 2048, 151_936), nothing),
    "infer_writing_b8_256": lambda: module(writing, words(8, 256, 150_000), nothing),
    "infer_reranker_b64_256": lambda: module(reranker, words(64, 256, 128_000), nothing),
    "infer_segment_encoder_b4_half": lambda: module(
        segment_encoder, normal(4, 3, 1024, 1024), nothing
    ),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
