"""Jobs written on 2026-11-26, later than `fresh4.py` and of other kinds, by an author who has not seen the clocks.

`python fresh5.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, images, lm, module, torchvision_model
from training import main


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def squares(torch, m, b):
    return torch.nn.functional.mse_loss(m(b[0]), b[1])


def normal(*size):
    return lambda torch: torch.randn(size, device="cuda")


def pair(left, right):
    return lambda torch: (torch.randn(left, device="cuda"), torch.randn(right, device="cuda"))


def labelled(*size, classes):
    return lambda torch: (torch.randn(size, device="cuda"), torch.randint(0, classes, size[:1], device="cuda"))  # fmt: skip


def words(count, length, vocabulary):
    return lambda torch: torch.randint(0, vocabulary, (count, length), device="cuda")


def next_word(torch, m, x):
    return torch.nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def timm_model(name, bs, res=224, opt="adamw", amp="bf16", cl=False, **kw):
    """A model of timm with labelled pictures."""

    def build():
        import timm
        import torch

        m = timm.create_model(name, num_classes=100, **kw).cuda().train()
        if cl:
            m = m.to(memory_format=torch.channels_last)
        form = torch.channels_last if cl else torch.contiguous_format

        def batch():
            x = torch.randn(bs, 3, res, res, device="cuda").contiguous(memory_format=form)
            return x, torch.randint(0, 100, (bs,), device="cuda")

        return m, batch, lambda b: torch.nn.functional.cross_entropy(m(b[0]), b[1])

    return dict(build=build, opt=opt, amp=amp)


def retention(torch):
    """A decoder whose attention is a product with a decay for each head instead of a softmax."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, heads, length):
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkvg, self.out = nn.Linear(width, 4 * width), nn.Linear(width, width)
            self.norm = nn.GroupNorm(heads, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            gamma = 1 - 2.0 ** (-5 - torch.arange(heads).float())
            apart = torch.arange(length)[:, None] - torch.arange(length)
            decay = gamma[:, None, None] ** apart.clamp(min=0) * (apart >= 0)
            self.register_buffer("decay", decay)

        def forward(self, x):
            n, length, width = x.shape
            q, k, v, g = self.qkvg(self.before(x)).chunk(4, -1)
            q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
            kept = q @ k.mT * (width // self.heads) ** -0.5 * self.decay
            y = (kept @ v).transpose(1, 2).reshape(n * length, width)
            y = self.norm(y).view(n, length, width)
            x = x + self.out(nn.functional.silu(g) * y)
            return x + self.mlp(self.between(x))

    return nn.Sequential(nn.Embedding(16_000, 512), *[Block(512, 8, 512) for _ in range(8)], nn.Linear(512, 16_000))  # fmt: skip


def rainfall(torch):
    """Convolutional LSTMs over radar pictures, one cell after the other."""
    from torch import nn

    class Cell(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.b, self.gates = b, nn.Conv2d(a + b, 4 * b, 3, 1, 1)

        def forward(self, x, state):
            h, c = state
            i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.ModuleList([Cell(16, 64), Cell(64, 64)])
            self.out = nn.Conv2d(64, 16, 1)

        def forward(self, x):
            n, steps, _, h, w = x.shape
            states = [(x.new_zeros(n, c.b, h, w),) * 2 for c in self.cells]
            for at in range(steps):
                y = x[:, at]
                for k, cell in enumerate(self.cells):
                    states[k] = cell(y, states[k])
                    y = states[k][0]
            return self.out(y)

    return Forecast()


def hourglass(torch):
    """Two stacked hourglasses that tell the joints of people by heat maps."""
    from torch import nn

    def unit(a, b):
        return nn.Sequential(
            nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b // 2, 1), nn.BatchNorm2d(b // 2), nn.ReLU(),
            nn.Conv2d(b // 2, b // 2, 3, 1, 1), nn.BatchNorm2d(b // 2), nn.ReLU(), nn.Conv2d(b // 2, b, 1),
        )  # fmt: skip

    class Residual(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.body = unit(a, b)
            self.short = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

        def forward(self, x):
            return self.short(x) + self.body(x)

    class Hourglass(nn.Module):
        def __init__(self, depth, width):
            super().__init__()
            self.side, self.down, self.up = (Residual(width, width) for _ in range(3))
            self.inner = Hourglass(depth - 1, width) if depth > 1 else Residual(width, width)

        def forward(self, x):
            y = self.up(self.inner(self.down(nn.functional.max_pool2d(x, 2))))
            return self.side(x) + nn.functional.interpolate(y, scale_factor=2)

    class Stack(nn.Module):
        def __init__(self, width=192):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), Residual(64, 128), nn.MaxPool2d(2), Residual(128, width))  # fmt: skip
            self.glasses = nn.ModuleList([Hourglass(4, width) for _ in range(2)])
            self.heads = nn.ModuleList([nn.Conv2d(width, 17, 1) for _ in range(2)])
            self.back = nn.Conv2d(17, width, 1)

        def forward(self, x):
            x, outs = self.stem(x), []
            for glass, head in zip(self.glasses, self.heads):
                y = glass(x)
                outs.append(head(y))
                x = x + y + self.back(outs[-1])
            return torch.stack(outs, 1)

    return Stack()


def heat(torch):
    return torch.randn(32, 3, 256, 192, device="cuda"), torch.rand(32, 2, 17, 64, 48, device="cuda")


def deformed(torch):
    """Convolutions that look where they have learned to (modulated)."""
    import torchvision
    from torch import nn

    class Deformed(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.where = nn.Conv2d(a, 27, 3, stride, 1)
            self.conv = torchvision.ops.DeformConv2d(a, b, 3, stride, 1)
            self.norm = nn.BatchNorm2d(b)

        def forward(self, x):
            dy, dx, mask = self.where(x).chunk(3, 1)
            y = self.conv(x, torch.cat([dy, dx], 1), mask.sigmoid())
            return torch.relu(self.norm(y))

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), Deformed(32, 64, 2), Deformed(64, 64, 1), Deformed(64, 128, 2),
        Deformed(128, 128, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 30),
    )  # fmt: skip


def dictionary(torch):
    """A wide sparse autoencoder over a language model's activations: only the largest entries are kept."""
    from torch import nn

    class Dictionary(nn.Module):
        def __init__(self, width=768, entries=24_576, kept=32):
            super().__init__()
            self.kept = kept
            self.bias = nn.Parameter(torch.zeros(width))
            self.encode, self.decode = (
                nn.Linear(width, entries),
                nn.Linear(entries, width, bias=False),
            )

        def forward(self, x):
            code = self.encode(x - self.bias)
            values, index = code.topk(self.kept, -1)
            code = torch.zeros_like(code).scatter(-1, index, values.relu())
            return self.decode(code) + self.bias

    return Dictionary()


def apart(torch):
    """Pictures by a small ResNet and an expander; variances and covariances keep the answers apart (VICReg)."""
    import torchvision
    from torch import nn

    body = torchvision.models.resnet18()
    body.fc = nn.Sequential(
        nn.Linear(512, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048)
    )  # fmt: skip
    return body


def covariances(torch, m, x):
    a, b = m(x).float(), m(x.flip(-1)).float()
    loss = 25 * torch.nn.functional.mse_loss(a, b)
    for z in (a, b):
        z = z - z.mean(0)
        loss = loss + 25 * torch.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
        cov = z.T @ z / (len(z) - 1)
        loss = loss + (cov.square().sum() - cov.diagonal().square().sum()) / z.shape[1]
    return loss


def facts(torch):
    """Things and relations as complex vectors, true facts against drawn ones (ComplEx)."""
    from torch import nn

    class Facts(nn.Module):
        def __init__(self, things=120_000, kinds=800, width=256):
            super().__init__()
            self.re, self.im = nn.Embedding(things, width), nn.Embedding(things, width)
            self.kind_re, self.kind_im = nn.Embedding(kinds, width), nn.Embedding(kinds, width)

        def forward(self, head, kind, tail):
            a, b = self.re(head), self.im(head)
            r, s = self.kind_re(kind), self.kind_im(kind)
            left, right = a * r - b * s, a * s + b * r
            return torch.einsum("bd,bkd->bk", left, self.re(tail)) + torch.einsum("bd,bkd->bk", right, self.im(tail))  # fmt: skip

    return Facts()


def triples(torch):
    draw = lambda n, *size: torch.randint(0, n, size, device="cuda")
    return draw(120_000, 2048), draw(800, 2048), draw(120_000, 2048, 65)


def true_first(torch, m, b):
    scores = m(*b)
    return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device="cuda"))  # fmt: skip


def stacks(torch):
    """N-BEATS: blocks of linear layers that take away what they explain."""
    from torch import nn

    class Beats(nn.Module):
        def __init__(self, past=168, future=24, width=512, blocks=12):
            super().__init__()
            self.blocks = nn.ModuleList(
                [
                    nn.Sequential(
                        nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + future),
                    )
                    for _ in range(blocks)
                ]
            )  # fmt: skip
            self.past = past

        def forward(self, x):
            total = 0
            for block in self.blocks:
                y = block(x)
                x, total = x - y[:, : self.past], total + y[:, self.past :]
            return total

    return Beats()


def splines(torch):
    """Layers of learned B-splines (Kolmogorov-Arnold)."""
    from torch import nn

    class Spline(nn.Module):
        def __init__(self, a, b, grid=8, order=3):
            super().__init__()
            self.order = order
            knots = torch.arange(-order, grid + order + 1) * (2 / grid) - 1
            self.register_buffer("knots", knots.float())
            self.base = nn.Parameter(torch.randn(b, a) * a**-0.5)
            self.weight = nn.Parameter(torch.randn(b, a * (grid + order)) * 0.05)

        def forward(self, x):
            t, u = self.knots, x[..., None]
            basis = ((u >= t[:-1]) & (u < t[1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                left = (u - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * basis[..., :-1]
                right = (t[k + 1 :] - u) / (t[k + 1 :] - t[1:-k]) * basis[..., 1:]
                basis = left + right
            return nn.functional.linear(nn.functional.silu(x), self.base) + nn.functional.linear(basis.flatten(1), self.weight)  # fmt: skip

    return nn.Sequential(Spline(16, 64), Spline(64, 64), Spline(64, 4))


def slots(torch):
    """Slots that compete for the parts of a picture, and a decoder that paints each of them."""
    from torch import nn

    class Slots(nn.Module):
        def __init__(self, width=64, count=7):
            super().__init__()
            self.count = count
            convs = [
                part
                for a in (3, width, width, width)
                for part in (nn.Conv2d(a, width, 5, 1, 2), nn.ReLU())
            ]
            self.encode = nn.Sequential(*convs)
            self.norm, self.own, self.after = (nn.LayerNorm(width) for _ in range(3))
            self.k, self.v, self.q = (nn.Linear(width, width, bias=False) for _ in range(3))
            self.cell = nn.GRUCell(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width))
            self.mean = nn.Parameter(torch.randn(width) * 0.1)
            self.place = nn.Parameter(torch.randn(1, width, 8, 8) * 0.1)
            ups = [
                part
                for _ in range(3)
                for part in (nn.ConvTranspose2d(width, width, 5, 2, 2, 1), nn.ReLU())
            ]
            self.decode = nn.Sequential(*ups, nn.Conv2d(width, 4, 3, 1, 1))

        def forward(self, x):
            n = len(x)
            h = self.norm(self.encode(x).flatten(2).mT)
            k, v = self.k(h), self.v(h)
            s = self.mean + torch.randn(n, self.count, k.shape[-1], device=x.device)
            for _ in range(3):
                share = (k @ self.q(self.own(s)).mT * k.shape[-1] ** -0.5).softmax(-1) + 1e-8
                seen = (share / share.sum(1, keepdim=True)).mT @ v
                s = self.cell(seen.flatten(0, 1), s.flatten(0, 1)).view_as(s)
                s = s + self.mlp(self.after(s))
            y = self.decode(s.flatten(0, 1)[:, :, None, None] + self.place)
            y = y.view(n, self.count, 4, *x.shape[2:])
            return (y[:, :, :3] * y[:, :, 3:].softmax(1)).sum(1)

    return Slots()


def holes(torch):
    """Pictures are filled by gated convolutions, dilated in the middle."""
    from torch import nn

    class Gated(nn.Module):
        def __init__(self, a, b, window=3, stride=1, wide=1):
            super().__init__()
            self.conv = nn.Conv2d(a, 2 * b, window, stride, wide * (window // 2), wide)
            self.norm = nn.InstanceNorm2d(b, affine=True)

        def forward(self, x):
            y, gate = self.conv(x).chunk(2, 1)
            return self.norm(nn.functional.elu(y) * torch.sigmoid(gate))

    up = lambda: nn.Upsample(scale_factor=2, mode="nearest")
    return nn.Sequential(
        Gated(4, 48, 5), Gated(48, 96, 3, 2), Gated(96, 96), Gated(96, 192, 3, 2), Gated(192, 192),
        *[Gated(192, 192, wide=w) for w in (2, 4, 8, 16)], Gated(192, 192), up(), Gated(192, 96), Gated(96, 96),
        up(), Gated(96, 48), nn.Conv2d(48, 3, 3, 1, 1),
    )  # fmt: skip


def filled(torch, m, x):
    mask = (torch.rand(len(x), 1, 16, 16, device="cuda") < 0.3).float().repeat_interleave(16, 2).repeat_interleave(16, 3)  # fmt: skip
    return ((m(torch.cat([x * (1 - mask), mask], 1)) - x).abs() * (1 + 5 * mask)).mean()


def embedder(torch):
    """Sentences that are drawn as pairs: the mean of a small encoder's states, all others of the batch as negatives."""
    import transformers

    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False)


def paired(torch, m, x):
    z = torch.nn.functional.normalize(m(input_ids=x).last_hidden_state.mean(1).float(), dim=-1)
    a, b = z.chunk(2)
    return torch.nn.functional.cross_entropy(a @ b.T / 0.05, torch.arange(len(a), device="cuda"))


def painter(torch):
    """Twelve deterministic steps of a small diffusion model."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.one, self.two = nn.Conv2d(a, b, 3, 1, 1), nn.Conv2d(b, b, 3, 1, 1)
            self.norm, self.other = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
            self.time = nn.Linear(128, b)
            self.short = nn.Conv2d(a, b, 1)

        def forward(self, x, t):
            y = self.one(nn.functional.silu(self.norm(x))) + self.time(t)[:, :, None, None]
            return self.short(x) + self.two(nn.functional.silu(self.other(y)))

    class Painter(nn.Module):
        def __init__(self, width=96):
            super().__init__()
            self.enter, self.out = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
            self.a, self.b = Block(width, width), Block(width, 2 * width)
            self.c, self.d = Block(2 * width, 2 * width), Block(3 * width, width)

        def noise(self, x, t):
            angles = t * torch.exp(torch.linspace(0, -8, 64, device=x.device, dtype=x.dtype))
            e = torch.cat([angles.sin(), angles.cos()])[None]
            h = self.a(self.enter(x), e)
            y = self.c(self.b(nn.functional.avg_pool2d(h, 2), e), e)
            y = nn.functional.interpolate(y, scale_factor=2)
            return self.out(self.d(torch.cat([h, y], 1), e))

        def forward(self, x):
            for at in range(12, 0, -1):
                now, then = 1 - at / 13, 1 - (at - 1) / 13
                eps = self.noise(x, float(at))
                clean = (x - (1 - now) ** 0.5 * eps) / now**0.5
                x = then**0.5 * clean + (1 - then) ** 0.5 * eps
            return x

    return Painter()


def translating(torch):
    """Marian writes sixteen words for each of sixteen sentences, always the likeliest."""
    import transformers
    from torch import nn

    class Translating(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.MarianConfig(
                vocab_size=16_000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
                encoder_attention_heads=8, decoder_attention_heads=8, pad_token_id=15_999, eos_token_id=0, decoder_start_token_id=15_999,
            )  # fmt: skip
            self.body = transformers.MarianMTModel(config)
            self.body.generation_config.eos_token_id = None  # no sentence ends before the others

        def forward(self, x):
            return self.body.generate(x, attention_mask=torch.ones_like(x), num_beams=1, do_sample=False, max_new_tokens=16)  # fmt: skip

    return Translating()


def nothing(torch, m, b):
    return m(b)


def depth_maps(torch):
    import transformers

    config = transformers.DPTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, image_size=384,
        backbone_out_indices=[2, 5, 8, 11], neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=128,
    )  # fmt: skip
    return transformers.DPTForDepthEstimation(config)


JOBS = {
    "retention_b8_bf16": lambda: module(retention, words(8, 512, 16_000), next_word, opt="adamw", amp="bf16"),
    "rainfall_b8": lambda: module(rainfall, pair((8, 10, 16, 64, 64), (8, 16, 64, 64)), squares),
    "hourglass_b32_bf16": lambda: module(hourglass, heat, squares, opt="rmsprop", amp="bf16"),
    "deformed_b16": lambda: module(deformed, labelled(16, 3, 192, 192, classes=30), classify, opt="sgd"),
    "dictionary_8192_bf16": lambda: module(dictionary, normal(8192, 768), lambda torch, m, x: torch.nn.functional.mse_loss(m(x), x), amp="bf16"),
    "covariances_b256_bf16": lambda: module(apart, normal(256, 3, 128, 128), covariances, opt="sgd", amp="bf16"),
    "facts_2048": lambda: module(facts, triples, true_first),
    "stacks_1024": lambda: module(stacks, pair((1024, 168), (1024, 24)), squares),
    "splines_4096": lambda: module(splines, pair((4096, 16), (4096, 4)), squares, opt="adamw"),
    "slots_b32": lambda: module(slots, normal(32, 3, 64, 64), lambda torch, m, x: torch.nn.functional.mse_loss(m(x), x)),
    "holes_b16": lambda: module(holes, lambda torch: torch.rand(16, 3, 256, 256, device="cuda"), filled, opt="adam"),
    "embedder_b256_64_bf16": lambda: module(embedder, words(256, 64, 30_000), paired, opt="adamw", amp="bf16"),
    "beit_b64_bf16": lambda: hf("BeitForImageClassification", "BeitConfig", images(64, 224, 2)),
    "codegen_b4_1024_bf16": lambda: hf("CodeGenForCausalLM", "CodeGenConfig", lm(4, 1024), vocab_size=51_200, n_embd=1024, n_layer=12, n_head=16, rotary_dim=32, use_cache=False),
    "nfnet_l0_b64_bf16_cl": lambda: timm_model("nfnet_l0", 64, opt="sgd", cl=True),
    "coatnet_0_b48_bf16": lambda: timm_model("coatnet_0_rw_224", 48),
}  # fmt: skip
INFERENCE = {
    "infer_painter_b16_half": lambda: module(painter, normal(16, 3, 64, 64), nothing),
    "infer_translating_b16": lambda: module(translating, words(16, 40, 15_000), nothing),
    "infer_depth_maps_b16_half": lambda: module(depth_maps, normal(16, 3, 384, 384), nothing),
    "infer_shufflenet_v2_x2_0_b1": lambda: torchvision_model("shufflenet_v2_x2_0", 1),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
