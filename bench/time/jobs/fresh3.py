"""Jobs written on 2026-11-26 before a coefficient of the clocks was changed that day, of other kinds than the older ones; priced once.

`python fresh3.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, lm, masked, module, torchvision_model, transformers_model
from training import main


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def squares(torch, m, b):
    return torch.nn.functional.mse_loss(m(b[0]), b[1])


def labelled(*size, classes):
    return lambda torch: (
        torch.randn(size, device="cuda"),
        torch.randint(0, classes, size[:1], device="cuda"),
    )


def long_filters(torch):
    """Blocks whose filters are as long as the sequence, by Fourier transforms."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, length):
            super().__init__()
            self.filter = nn.Parameter(torch.randn(width, length) * 0.02)
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.Linear(width, width),
            )

        def forward(self, x):
            length = x.shape[1]
            y = self.norm(x).transpose(1, 2)
            y = torch.fft.irfft(
                torch.fft.rfft(y, n=2 * length) * torch.fft.rfft(self.filter, n=2 * length)
            )
            return x + self.down(nn.functional.glu(self.up(y[..., :length].transpose(1, 2))))

    return nn.Sequential(nn.Linear(4, 192), *[Block(192, 2048) for _ in range(6)], nn.Linear(192, 4))  # fmt: skip


def gaussian_process(torch):
    """The evidence of Gaussian processes: Cholesky factors and triangular solutions."""
    from torch import nn

    class Process(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 16))
            self.noise = nn.Parameter(torch.zeros(()))

        def forward(self, x, y):
            z = self.features(x)
            kernel = torch.exp(-torch.cdist(z, z).square() / 2)
            kernel = kernel + (0.1 + self.noise.exp()) * torch.eye(x.shape[1], device=x.device)
            factor = torch.linalg.cholesky(kernel)
            part = torch.linalg.solve_triangular(factor, y, upper=False)
            return part.square().sum() / 2 + factor.diagonal(dim1=-2, dim2=-1).log().sum()

    return Process()


def experts(torch):
    """Blocks of experts that choose their tokens."""
    from torch import nn

    class Experts(nn.Module):
        def __init__(self, width=512, count=8):
            super().__init__()
            self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, count, bias=False)
            self.up = nn.Parameter(torch.randn(count, width, 4 * width) * 0.02)
            self.down = nn.Parameter(torch.randn(count, 4 * width, width) * 0.02)

        def forward(self, x):
            flat = self.norm(x).flatten(0, 1)
            weight, chosen = self.router(flat).softmax(-1).t().topk(len(flat) // 4, dim=-1)
            hidden = torch.bmm(flat[chosen], self.up.to(flat.dtype))
            made = (
                torch.bmm(nn.functional.gelu(hidden), self.down.to(flat.dtype)) * weight[..., None]
            )
            back = torch.zeros_like(flat).index_add(
                0, chosen.flatten(), made.flatten(0, 1).to(flat.dtype)
            )
            return x + back.view_as(x)

    return nn.Sequential(
        nn.Embedding(8000, 512), *[Experts() for _ in range(6)], nn.Linear(512, 8000)
    )


def tokens(count, length, words):
    return lambda torch: torch.randint(0, words, (count, length), device="cuda")


def next_token(torch, m, x):
    return torch.nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def attending_graph(torch):
    """Attention over the edges of a graph, with scattered softmax."""
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, a, b, heads=4):
            super().__init__()
            self.value, self.heads = nn.Linear(a, b, bias=False), heads
            self.left, self.right = (
                nn.Parameter(torch.randn(heads, b // heads)),
                nn.Parameter(torch.randn(heads, b // heads)),
            )

        def forward(self, x, edges):
            h = self.value(x).view(len(x), self.heads, -1)
            score = (h * self.left).sum(-1)[edges[0]] + (h * self.right).sum(-1)[edges[1]]
            score = nn.functional.leaky_relu(score, 0.2).exp()
            total = torch.zeros(len(x), self.heads, device=x.device).index_add_(0, edges[1], score)
            part = h[edges[0]] * (score / total[edges[1]])[..., None]
            return torch.zeros_like(h).index_add_(0, edges[1], part).flatten(1)

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.out = Layer(128, 256), Layer(256, 256), nn.Linear(256, 40)

        def forward(self, x, edges):
            return self.out(
                nn.functional.elu(self.two(nn.functional.elu(self.one(x, edges)), edges))
            )

    return Graph()


def graph(torch):
    nodes, edges = 20_000, 160_000
    return torch.randn(nodes, 128, device="cuda"), torch.randint(0, nodes, (2, edges), device="cuda"), torch.randint(0, 40, (nodes,), device="cuda")  # fmt: skip


def cells(torch):
    """A loop of cells in Python."""
    from torch import nn

    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.cell, self.out = (
                nn.Embedding(4000, 256),
                nn.GRUCell(256, 384),
                nn.Linear(384, 4000),
            )

        def forward(self, x):
            state, outs = torch.zeros(len(x), 384, device=x.device), []
            for word in self.words(x).unbind(1):
                state = self.cell(word, state)
                outs.append(state)
            return self.out(torch.stack(outs, 1))

    return Cells()


def style(torch):
    """Gram matrices of a network's features, for a picture that is learned."""
    import torchvision
    from torch import nn

    class Style(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torchvision.models.vgg16().features[:23].requires_grad_(False)
            self.picture = nn.Parameter(torch.randn(4, 3, 384, 384))

        def forward(self, x):
            grams = []
            for layer in self.body:
                x = layer(x)
                if isinstance(layer, nn.Conv2d):
                    flat = x.flatten(2)
                    grams.append(flat @ flat.transpose(1, 2) / flat.shape[2])
            return grams

    return Style()


def stereo(torch):
    """A volume of costs of two pictures, with convolutions in three dimensions."""
    from torch import nn

    class Stereo(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(True), nn.Conv2d(32, 32, 3, 2, 1)
            )
            layers = [
                part
                for _ in range(3)
                for part in (nn.Conv3d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(True))
            ]
            self.volume = nn.Sequential(
                nn.Conv3d(64, 32, 1), *layers, nn.Conv3d(32, 1, 3, padding=1)
            )

        def forward(self, x):
            left, right = self.features(x[:, 0]), self.features(x[:, 1])
            pairs = [torch.cat([left, right.roll(shift, -1)], 1) for shift in range(24)]
            return self.volume(torch.stack(pairs, 2)).squeeze(1).softmax(1)

    return Stereo()


def waves(torch):
    """Coordinates through sines."""
    from torch import nn

    class Sine(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.line = nn.Linear(a, b)

        def forward(self, x):
            return torch.sin(30 * self.line(x))

    return nn.Sequential(Sine(2, 256), *[Sine(256, 256) for _ in range(4)], nn.Linear(256, 3))


def alike(torch):
    import torchvision

    return torchvision.models.resnet18(num_classes=128)


def contrast(torch, m, x):
    """Two views of each picture must be closer to each other than to all others."""
    z = torch.nn.functional.normalize(torch.cat([m(x), m(x.flip(-1))]), dim=-1)
    close = z @ z.t() / 0.1
    close = close.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e4)
    return torch.nn.functional.cross_entropy(
        close.float(), torch.arange(len(z), device=z.device).roll(len(x))
    )


def neighbours(torch):
    """Vectors of words from their neighbours, against words drawn at random."""
    from torch import nn

    return nn.ModuleList([nn.Embedding(50_000, 256), nn.Embedding(50_000, 256)])


def drawn(torch, m, b):
    word, near = b
    score = torch.bmm(m[1](near), m[0](word)[..., None]).squeeze(-1)
    target = torch.zeros_like(score)
    target[:, 0] = 1
    return torch.nn.functional.binary_cross_entropy_with_logits(score, target)


def grouped_decoder(torch):
    """A decoder with fewer keys than queries, rotations written out, gated layers and root-mean-square norms."""
    from torch import nn

    width, heads, few = 1024, 16, 4

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            size = width // heads
            self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
            self.q, self.kv = (
                nn.Linear(width, width, bias=False),
                nn.Linear(width, 2 * few * size, bias=False),
            )
            self.o, self.gate = (
                nn.Linear(width, width, bias=False),
                nn.Linear(width, 5632, bias=False),
            )
            self.down = nn.Linear(2816, width, bias=False)

        def turned(self, x, angles):
            a, b = x.chunk(2, -1)
            return torch.cat(
                [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1
            ).to(x.dtype)

        def forward(self, x, angles):
            n, length, _ = x.shape
            y = self.norms[0](x)
            q = self.turned(self.q(y).view(n, length, heads, -1).transpose(1, 2), angles)
            k, v = self.kv(y).view(n, length, 2, few, -1).permute(2, 0, 3, 1, 4)
            k = self.turned(k, angles).repeat_interleave(heads // few, 1)
            y = nn.functional.scaled_dot_product_attention(
                q, k, v.repeat_interleave(heads // few, 1), is_causal=True
            )
            x = x + self.o(y.transpose(1, 2).flatten(2))
            a, b = self.gate(self.norms[1](x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(a) * b)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.blocks = (
                nn.Embedding(24_000, width),
                nn.ModuleList([Block() for _ in range(8)]),
            )
            self.norm = nn.RMSNorm(width)

        def forward(self, x):
            rates = 10_000 ** -torch.linspace(0, 1, width // heads // 2, device=x.device)
            angles = torch.arange(x.shape[1], device=x.device)[:, None] * rates
            h = self.words(x)
            for block in self.blocks:
                h = block(h, angles)
            return self.norm(h) @ self.words.weight.t()

    return Decoder()


def denoiser(torch):
    """A transformer over patches whose norms are set by the time."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=384, heads=6):
            super().__init__()
            self.norm, self.heads = nn.LayerNorm(width, elementwise_affine=False), heads
            self.set, self.qkv, self.out = (
                nn.Linear(width, 6 * width),
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
            )
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            )

        def forward(self, x, t):
            a, b, c, d, e, f = self.set(nn.functional.silu(t))[:, None].chunk(6, -1)
            n, length, width = x.shape
            q, k, v = (
                self.qkv(self.norm(x) * (1 + a) + b)
                .view(n, length, 3, self.heads, -1)
                .permute(2, 0, 3, 1, 4)
            )
            y = (
                nn.functional.scaled_dot_product_attention(q, k, v)
                .transpose(1, 2)
                .reshape(n, length, width)
            )
            x = x + c * self.out(y)
            return x + f * self.mlp(self.norm(x) * (1 + d) + e)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.time = nn.Conv2d(4, 384, 2, 2), nn.Linear(1, 384)
            self.place = nn.Parameter(torch.zeros(1, 256, 384))
            self.blocks, self.out = nn.ModuleList([Block() for _ in range(10)]), nn.Linear(384, 16)

        def forward(self, x):
            t = self.time(torch.rand(len(x), 1, device=x.device))
            x = self.enter(x).flatten(2).transpose(1, 2) + self.place
            for block in self.blocks:
                x = block(x, t)
            return self.out(x)

    return Denoiser()


def segmenter(torch):
    import torchvision

    return torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    )


def video(torch):
    import torchvision

    return torchvision.models.video.mc3_18(num_classes=50)


def speech(torch, c):
    return dict(
        input_features=torch.randn(8, c.num_mel_bins, 3000, device="cuda"),
        labels=torch.randint(0, c.vocab_size, (8, 100), device="cuda"),
    )


JOBS = {
    "long_filters_b8": lambda: module(long_filters, lambda torch: [torch.randn(8, 2048, 4, device="cuda")] * 2, squares),
    "gaussian_process_4": lambda: module(
        gaussian_process, lambda torch: (torch.randn(4, 1024, 8, device="cuda"), torch.randn(4, 1024, 1, device="cuda")),
        lambda torch, m, b: m(*b),
    ),
    "experts_b8_bf16": lambda: module(experts, tokens(8, 512, 8000), next_token, opt="adamw", amp="bf16"),
    "attending_graph": lambda: module(
        attending_graph, graph, lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0], b[1]), b[2])
    ),
    "cells_b64": lambda: module(cells, tokens(64, 48, 4000), next_token),
    "style_b4": lambda: module(
        style, lambda torch: None, lambda torch, m, b: sum(g.square().mean() for g in m(m.picture))
    ),
    "stereo_b2_bf16": lambda: module(
        stereo, lambda torch: torch.randn(2, 2, 3, 256, 320, device="cuda"),
        lambda torch, m, x: m(x).square().mean(), amp="bf16",
    ),
    "waves_131072": lambda: module(
        waves, lambda torch: (torch.rand(131_072, 2, device="cuda"), torch.rand(131_072, 3, device="cuda")), squares
    ),
    "contrast_b256_bf16": lambda: module(alike, lambda torch: torch.randn(256, 3, 96, 96, device="cuda"), contrast, amp="bf16"),
    "neighbours_32768": lambda: module(
        neighbours,
        lambda torch: (torch.randint(0, 50_000, (32_768,), device="cuda"), torch.randint(0, 50_000, (32_768, 6), device="cuda")),
        drawn, opt="sgd",
    ),
    "grouped_decoder_b4_bf16": lambda: module(grouped_decoder, tokens(4, 1024, 24_000), next_token, opt="adamw", amp="bf16"),
    "denoiser_b32_fp16": lambda: module(
        denoiser, lambda torch: torch.randn(32, 4, 32, 32, device="cuda"),
        lambda torch, m, x: m(x).square().mean(), opt="adamw", amp="fp16",
    ),
    "segmenter_b8_bf16": lambda: module(
        segmenter,
        lambda torch: (torch.randn(8, 3, 320, 320, device="cuda"), torch.randint(0, 21, (8, 320, 320), device="cuda")),
        lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0])["out"], b[1]), opt="sgd", amp="bf16",
    ),
    "video_b4_fp16": lambda: module(video, labelled(4, 3, 16, 112, 112, classes=50), classify, opt="sgd", amp="fp16"),
    "regnet_y_800mf_b96_bf16_cl": lambda: torchvision_model("regnet_y_800mf", 96, amp="bf16", cl=True),
    "shufflenet_v2_b128": lambda: torchvision_model("shufflenet_v2_x1_0", 128),
    "neox_b4_512_bf16": lambda: hf("GPTNeoXForCausalLM", "GPTNeoXConfig", lm(4, 512), vocab_size=32_000, hidden_size=768, num_hidden_layers=8, num_attention_heads=12, intermediate_size=3072, use_cache=False),
    "mpnet_mlm_b16_192": lambda: hf("MPNetForMaskedLM", "MPNetConfig", masked(16, 192), amp=None),
    "speech_b8_bf16": lambda: hf("WhisperForConditionalGeneration", "WhisperConfig", speech, vocab_size=20_000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False),
}  # fmt: skip
INFERENCE = {
    "infer_convnext_tiny_b96_half": lambda: torchvision_model("convnext_tiny", 96),
    "infer_bert_b32_256": lambda: transformers_model(
        "BertForSequenceClassification", "BertConfig", 32, 256, amp=None
    ),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
