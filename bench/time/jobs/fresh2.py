"""Jobs written on 2026-11-25 before a coefficient of the clocks was changed, priced once when the new ones stood.

`python fresh2.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, lm, masked, module, torchvision_model, transformers_model
from training import main


def tagger(torch):
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20_000, 256)
            self.body = nn.LSTM(256, 256, 2, bidirectional=True, batch_first=True, dropout=0.2)
            self.out = nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 40))

        def forward(self, x):
            return self.out(self.body(self.words(x))[0])

    return Tagger()


def tagged(torch):
    return torch.randint(0, 20_000, (64, 96), device="cuda"), torch.randint(0, 40, (64, 96), device="cuda")  # fmt: skip


def by_token(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]).transpose(1, 2), b[1])


def autoencoder(torch):
    from torch import nn

    sizes = (1024, 2048, 1024, 512, 64)
    pairs = [*zip(sizes, sizes[1:]), *zip(sizes[::-1], sizes[-2::-1])]
    return nn.Sequential(*[part for a, b in pairs for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.GELU())])  # fmt: skip


def heartbeat(torch):
    """A residual network over signals."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.first = nn.Conv1d(a, b, 7, 2, 3, bias=False)
            self.second = nn.Conv1d(b, b, 7, 1, 3, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm1d(b), nn.BatchNorm1d(b)])
            self.short = nn.Conv1d(a, b, 1, 2)

        def forward(self, x):
            y = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(y)) + self.short(x))

    widths = (12, 64, 128, 192, 256)
    blocks = [Block(a, b) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 5))


def beats(torch):
    return torch.randn(128, 12, 4096, device="cuda"), torch.randint(0, 5, (128,), device="cuda")


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def adversaries(torch):
    """A generator and a critic that is trained against it in the same step."""
    from torch import nn

    def up(a, b):
        return [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]

    def down(a, b):
        return [nn.utils.spectral_norm(nn.Conv2d(a, b, 4, 2, 1)), nn.LeakyReLU(0.2, True)]

    return nn.ModuleList(
        [
            nn.Sequential(*up(256, 256), *up(256, 128), *up(128, 64), nn.Conv2d(64, 3, 3, 1, 1), nn.Tanh()),
            nn.Sequential(*down(3, 64), *down(64, 128), *down(128, 256), nn.Flatten(), nn.Linear(4096, 1)),
        ]
    )  # fmt: skip


def hinge(torch, m, x):
    made = m[0](torch.randn(len(x), 256, 4, 4, device="cuda"))
    return torch.relu(1 - m[1](x)).mean() + torch.relu(1 + m[1](made)).mean()


def translator(torch):
    from torch import nn

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(16_000, 384)
            self.body = nn.Transformer(384, 6, 4, 4, 1536, batch_first=True)
            self.out = nn.Linear(384, 16_000)

        def forward(self, a, b):
            mask = nn.Transformer.generate_square_subsequent_mask(b.shape[1], device=b.device)
            return self.out(
                self.body(self.words(a), self.words(b), tgt_mask=mask, tgt_is_causal=True)
            )

    return Translator()


def sentences(torch):
    return [torch.randint(0, 16_000, (24, n), device="cuda") for n in (80, 65)]


def translate(torch, m, b):
    out = m(b[0], b[1][:, :-1])
    return torch.nn.functional.cross_entropy(out.flatten(0, 1), b[1][:, 1:].flatten())


def separable(torch):
    """Convolutions of single channels with wide windows, and of few groups."""
    from torch import nn

    def pair(a, b, window, groups, stride=1):
        return [
            nn.Conv2d(a, a, window, stride, window // 2, groups=groups, bias=False),
            nn.BatchNorm2d(a), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU6(True),
        ]  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), *pair(32, 64, 3, 32), *pair(64, 128, 5, 64, 2), *pair(128, 128, 7, 128),
        *pair(128, 256, 3, 4, 2), *pair(256, 256, 3, 8), *pair(256, 512, 5, 256, 2), *pair(512, 512, 9, 512),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100),
    )  # fmt: skip


def pictures(torch):
    return torch.randn(48, 3, 192, 192, device="cuda"), torch.randint(0, 100, (48,), device="cuda")


def noise_predictor(torch):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
            self.enter, self.out = nn.Linear(32, 512), nn.Linear(512, 32)
            self.blocks = nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 1024), nn.SiLU(), nn.Linear(1024, 512)) for _ in range(12)]
            )  # fmt: skip

        def forward(self, x, t):
            angles = t[:, None] * torch.exp(torch.linspace(0, -8, 64, device=t.device))
            e = self.time(torch.cat([angles.sin(), angles.cos()], -1))
            x = self.enter(x)
            for block in self.blocks:
                x = x + block(x + e)
            return self.out(x)

    return Net()


def denoise(torch, m, x):
    t, noise = torch.rand(len(x), device="cuda"), torch.randn_like(x)
    return (m(x * (1 - t[:, None]) + noise * t[:, None], t) - noise).square().mean()


def agent(torch):
    from torch import nn

    return nn.Sequential(nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))  # fmt: skip


JOBS = {
    "tagger_b64": lambda: module(tagger, tagged, by_token),
    "autoencoder_4096_bf16": lambda: module(
        autoencoder, lambda torch: torch.randn(4096, 1024, device="cuda"),
        lambda torch, m, x: torch.nn.functional.mse_loss(m(x), x), opt="adamw", amp="bf16",
    ),
    "heartbeat_b128": lambda: module(heartbeat, beats, classify),
    "adversaries_b96": lambda: module(adversaries, lambda torch: torch.randn(96, 3, 32, 32, device="cuda"), hinge),
    "translator_b24": lambda: module(translator, sentences, translate),
    "separable_b48": lambda: module(separable, pictures, classify, opt="sgd"),
    "separable_b48_fp16": lambda: module(separable, pictures, classify, opt="sgd", amp="fp16"),
    "noise_predictor_2048": lambda: module(
        noise_predictor, lambda torch: torch.randn(2048, 32, device="cuda"), denoise, opt="adamw"
    ),
    "agent_8192": lambda: module(
        agent, lambda torch: torch.randn(8192, 24, device="cuda"),
        lambda torch, m, x: m(x).log_softmax(-1).square().mean(),
    ),
    "inception_v3_b24_bf16": lambda: torchvision_model(
        "inception_v3", 24, res=299, amp="bf16", init_weights=False, aux_logits=False
    ),
    "efficientnet_b1_b48_bf16": lambda: torchvision_model("efficientnet_b1", 48, res=240, amp="bf16"),
    "mobilenet_v3_small_b192_cl": lambda: torchvision_model("mobilenet_v3_small", 192, cl=True),
    "resnext101_b16_bf16": lambda: torchvision_model("resnext101_32x8d", 16, amp="bf16"),
    "convnext_small_b24_bf16": lambda: torchvision_model("convnext_small", 24, opt="adamw", amp="bf16"),
    "vgg11_bn_b48": lambda: torchvision_model("vgg11_bn", 48),
    "albert_mlm_b16_256": lambda: hf("AlbertForMaskedLM", "AlbertConfig", masked(16, 256), hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "bloom_small_b4_768": lambda: hf("BloomForCausalLM", "BloomConfig", lm(4, 768), amp="fp16", vocab_size=32_000, hidden_size=768, n_layer=8, n_head=12, use_cache=False),
    "distilbert_b48_96": lambda: transformers_model(
        "DistilBertForSequenceClassification", "DistilBertConfig", 48, 96, amp=None
    ),
}  # fmt: skip
INFERENCE = {
    "infer_mobilenet_v2_b256_half": lambda: torchvision_model("mobilenet_v2", 256),
    "infer_swin_t_b64": lambda: torchvision_model("swin_t", 64),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
