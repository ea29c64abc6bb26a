"""Jobs written and measured on 2026-11-25, after `held_out.py` had been looked at, and before the clocks were fitted again.

`python fresh.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, images, lm, masked, module, torchvision_model, transformers_model
from training import main


def labelled(bs, *shape, classes=10):
    def batch(torch):
        x = torch.randn(bs, *shape, device="cuda")
        return x, torch.randint(0, classes, (bs,), device="cuda")

    return batch


def tokens(bs, length, vocabulary):
    def batch(torch):
        x = torch.randint(0, vocabulary, (bs, length + 1), device="cuda")
        return x[:, :-1], x[:, 1:]

    return batch


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def predict(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())


def same(torch, m, x):
    return torch.nn.functional.mse_loss(m(x), x)


def gated_decoder(width, depth, heads, vocabulary):
    """RMS norms, rotary places, grouped keys, a gated feed-forward part."""

    def make(torch):
        from torch import nn
        from torch.nn import functional as F

        size = width // heads

        def turn(x, cos, sin):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.RMSNorm(width), nn.RMSNorm(width)
                self.q, self.kv = (
                    nn.Linear(width, width, bias=False),
                    nn.Linear(width, width // 2, bias=False),
                )
                self.o = nn.Linear(width, width, bias=False)
                self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
                self.down = nn.Linear(3 * width, width, bias=False)

            def forward(self, x, cos, sin):
                b, t, _ = x.shape
                y = self.one(x)
                q = self.q(y).view(b, t, heads, size).transpose(1, 2)
                k, v = self.kv(y).view(b, t, 2, heads // 4, size).permute(2, 0, 3, 1, 4)
                q, k = turn(q, cos, sin), turn(k, cos, sin)
                k, v = (each.repeat_interleave(4, 1) for each in (k, v))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.o(y.transpose(1, 2).reshape(b, t, width))
                y = self.two(x)
                return x + self.down(F.silu(self.gate(y)) * self.up(y))

        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.words = nn.Embedding(vocabulary, width)
                self.blocks = nn.ModuleList([Block() for _ in range(depth)])
                self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

            def forward(self, x):
                places = torch.arange(x.shape[1], device=x.device)[:, None]
                angles = places / 10000 ** (torch.arange(size // 2, device=x.device) * 2 / size)
                cos, sin = angles.cos(), angles.sin()
                x = self.words(x)
                for block in self.blocks:
                    x = block(x, cos, sin)
                return self.head(self.norm(x))

        return Decoder()

    return make


def patch_transformer(torch):
    """Time series in patches."""
    from torch import nn

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(16, 128)
            layer = nn.TransformerEncoderLayer(128, 8, 256, dropout=0.2, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 3)
            self.out = nn.Linear(128 * 63, 96)

        def forward(self, x):
            patches = x.unfold(-1, 16, 8).flatten(0, 1)
            return self.out(self.body(self.enter(patches)).flatten(1))

    return Patches()


def u_net_3d(torch):
    from torch import nn

    def twice(a, b):
        return nn.Sequential(
            nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01, True),
            nn.Conv3d(b, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01, True),
        )  # fmt: skip

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = twice(1, 32), twice(32, 64), twice(64, 128)
            self.up, self.upper = (
                nn.ConvTranspose3d(128, 64, 2, 2),
                nn.ConvTranspose3d(64, 32, 2, 2),
            )
            self.d, self.e, self.out = twice(128, 64), twice(64, 32), nn.Conv3d(32, 4, 1)

        def forward(self, x):
            a = self.a(x)
            b = self.b(nn.functional.max_pool3d(a, 2))
            c = self.c(nn.functional.max_pool3d(b, 2))
            d = self.d(torch.cat([self.up(c), b], 1))
            return self.out(self.e(torch.cat([self.upper(d), a], 1)))

    return Net()


def graph_sage(torch):
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.own, self.others = nn.Linear(a, b), nn.Linear(a, b, bias=False)

        def forward(self, x, source, target, degree):
            summed = torch.zeros_like(x).index_add_(0, target, x[source])
            return self.own(x) + self.others(summed / degree)

    class Sage(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(256, 256), Layer(256, 256), Layer(256, 64)])

        def forward(self, x, source, target, degree):
            for i, layer in enumerate(self.layers):
                x = layer(x, source, target, degree)
                if i < 2:
                    x = nn.functional.dropout(nn.functional.relu(x), 0.5, self.training)
            return x

    return Sage()


def graph(torch):
    n, edges = 100_000, 1_000_000
    source, target = (torch.randint(0, n, (edges,), device="cuda") for _ in range(2))
    degree = torch.bincount(target, minlength=n).clamp(min=1)[:, None]
    return torch.randn(n, 256, device="cuda"), source, target, degree, torch.randint(0, 64, (n,), device="cuda")  # fmt: skip


def wave_net(torch):
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, dilation):
            super().__init__()
            self.wide = nn.Conv1d(128, 256, 3, padding=dilation, dilation=dilation)
            self.skip, self.rest = nn.Conv1d(128, 128, 1), nn.Conv1d(128, 128, 1)

        def forward(self, x):
            a, b = self.wide(x).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            return x + self.rest(y), self.skip(y)

    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Conv1d(1, 128, 1)
            self.layers = nn.ModuleList([Layer(2 ** (i % 8)) for i in range(16)])
            self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(128, 128, 1), nn.ReLU(), nn.Conv1d(128, 1, 1))  # fmt: skip

        def forward(self, x):
            x, total = self.enter(x), 0
            for layer in self.layers:
                x, skip = layer(x)
                total = total + skip
            return self.out(total)

    return Wave()


def actor_critic(torch):
    from torch import nn

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            )  # fmt: skip
            self.policy, self.value = nn.Linear(512, 18), nn.Linear(512, 1)

        def forward(self, x):
            x = self.body(x)
            return self.policy(x), self.value(x)

    return Both()


def proximal(torch, m, b):
    logits, value = m(b[0])
    chosen = torch.distributions.Categorical(logits=logits, validate_args=False)
    ratio = (chosen.log_prob(b[1]) + 2.9).exp()
    gain = torch.randn_like(ratio)
    policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return policy + 0.5 * value.pow(2).mean() - 0.01 * chosen.entropy().mean()


def radiance(torch):
    from torch import nn

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(63, 256), nn.ReLU(), *[m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())])  # fmt: skip
            self.second = nn.Sequential(nn.Linear(319, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))  # fmt: skip

        def forward(self, x):
            scaled = x[..., None] * 2.0 ** torch.arange(10, device=x.device)
            code = torch.cat([x, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)
            out = self.second(torch.cat([self.first(code), code], -1))
            alpha = 1 - torch.exp(-torch.relu(out[..., 3]) * 0.05)
            seen = torch.cumprod(1 - alpha + 1e-10, -1)
            return ((alpha * seen)[..., None] * out[..., :3].sigmoid()).sum(-2)

    return Field()


def towers(torch):
    """Two towers with a contrastive loss."""
    from torch import nn

    def tower(words):
        return nn.Sequential(
            nn.EmbeddingBag(words, 256, mode="mean"), nn.Linear(256, 1024), nn.LayerNorm(1024), nn.ReLU(),
            nn.Linear(1024, 256),
        )  # fmt: skip

    return nn.ModuleList([tower(500_000), tower(200_000)])


def contrast(torch, m, b):
    a, c = (torch.nn.functional.normalize(tower(x), dim=-1) for tower, x in zip(m, b, strict=True))
    return torch.nn.functional.cross_entropy(a @ c.T * 20, torch.arange(len(a), device=a.device))


def with_convolutions(torch):
    """Blocks with large kernels for each channel, as ConvNeXt has them, and squeezed channels."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depth = nn.Conv2d(width, width, 5, padding=2, groups=width, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
            self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.SiLU(), nn.Conv2d(width // 4, width, 1), nn.Sigmoid())  # fmt: skip

        def forward(self, x):
            y = self.down(nn.functional.hardswish(self.up(self.norm(self.depth(x)))))
            return x + y * self.weigh(y)

    layers, width = [nn.Conv2d(3, 48, 4, 4)], 48
    for _ in range(3):
        layers += [Block(width), Block(width), nn.Conv2d(width, 2 * width, 2, 2)]
        width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


JOBS = {
    "decoder_160m_b8_bf16": lambda: module(
        gated_decoder(768, 12, 12, 32000), tokens(8, 1024, 32000), predict, opt="adamw_fused", amp="bf16"
    ),
    "decoder_40m_b4_fp32": lambda: module(
        gated_decoder(512, 8, 8, 8000), tokens(4, 512, 8000), predict, opt="adamw"
    ),
    "patches_b128": lambda: module(
        patch_transformer, lambda torch: torch.randn(128, 7, 512, device="cuda"),
        lambda torch, m, x: m(x).square().mean(),
    ),
    "u_net_3d_b2_fp16": lambda: module(
        u_net_3d, lambda torch: torch.randn(2, 1, 96, 96, 96, device="cuda"),
        lambda torch, m, x: m(x).float().square().mean(), amp="fp16",
    ),
    "graph_sage": lambda: module(
        graph_sage, graph, lambda torch, m, b: torch.nn.functional.cross_entropy(m(*b[:4]), b[4])
    ),
    "wave_net_b8": lambda: module(wave_net, lambda torch: torch.randn(8, 1, 8192, device="cuda"), same),
    "actor_critic_b1024": lambda: module(actor_critic, labelled(1024, 4, 84, 84, classes=18), proximal),
    "radiance_4096": lambda: module(
        radiance, lambda torch: torch.rand(4096, 64, 3, device="cuda"),
        lambda torch, m, x: (m(x) - 0.5).square().mean(), amp="fp16",
    ),
    "towers_b8192": lambda: module(
        towers,
        lambda torch: [torch.randint(0, n, (8192, 20), device="cuda") for n in (500_000, 200_000)],
        contrast, opt="adamw",
    ),
    "squeezed_b64_bf16": lambda: module(
        with_convolutions, labelled(64, 3, 256, 256, classes=100), classify, amp="bf16"
    ),
    "resnet18_cifar_b512_cl": lambda: torchvision_model("resnet18", 512, res=32, cl=True),
    "resnet152_b32_bf16": lambda: torchvision_model("resnet152", 32, amp="bf16"),
    "wide_resnet101_b32_cl_bf16": lambda: torchvision_model("wide_resnet101_2", 32, amp="bf16", cl=True),
    "densenet169_b32_bf16_cl": lambda: torchvision_model("densenet169", 32, amp="bf16", cl=True),
    "efficientnet_b3_b32": lambda: torchvision_model("efficientnet_b3", 32),
    "convnext_base_b32": lambda: torchvision_model("convnext_base", 32, opt="adamw"),
    "vit_b_32_b128_fp16": lambda: torchvision_model("vit_b_32", 128, opt="adamw", amp="fp16"),
    "mnasnet_b128": lambda: torchvision_model("mnasnet1_0", 128),
    "googlenet_b64_bf16": lambda: torchvision_model(
        "googlenet", 64, amp="bf16", init_weights=False, aux_logits=False
    ),
    "gpt2_b4_1024_fp16": lambda: hf(
        "GPT2LMHeadModel", "GPT2Config", lm(4, 1024), amp="fp16", use_cache=False
    ),
    "bert_base_b64_128": lambda: transformers_model(
        "BertForSequenceClassification", "BertConfig", 64, 128, opt="adamw_fused"
    ),
    "roberta_mlm_b8_384": lambda: hf("RobertaForMaskedLM", "RobertaConfig", masked(8, 384)),
    "swin_hf_b32": lambda: hf("SwinForImageClassification", "SwinConfig", images(32, 224, 2)),
    "llama_500m_b1_4096": lambda: transformers_model(
        "LlamaForCausalLM", "LlamaConfig", 1, 4096, amp=None, dtype="bfloat16", vocab_size=32000,
        hidden_size=1280, intermediate_size=3456, num_hidden_layers=20, num_attention_heads=20, use_cache=False,
    ),
}  # fmt: skip
INFERENCE = {
    "infer_vit_b_16_b128_half": lambda: torchvision_model("vit_b_16", 128),
    "infer_resnet50_b1": lambda: torchvision_model("resnet50", 1),
    "infer_efficientnet_b4_b64_half": lambda: torchvision_model("efficientnet_b4", 64, res=380),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
