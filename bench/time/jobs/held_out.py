"""Jobs whose times nobody looks at before the clocks are finished.

`python held_out.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, images, masked, module, torchvision_model, transformers_model
from training import main


def nano_gpt(bs, length, width, depth, heads, fused):
    """A decoder as people write it by hand; `fused` attention or products and a softmax."""

    def make(torch):
        from torch import nn
        from torch.nn import functional as F

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.register_buffer("mask", torch.ones(length, length).tril().bool())

            def forward(self, x):
                b, t, c = x.shape
                parts = self.qkv(self.before(x)).split(c, dim=2)
                q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in parts)
                if fused:
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                else:
                    scores = (q @ k.transpose(-2, -1)) * (c // heads) ** -0.5
                    scores = scores.masked_fill(~self.mask, float("-inf"))
                    y = F.dropout(F.softmax(scores, dim=-1), 0.1) @ v
                x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
                return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.places = nn.Embedding(50304, width), nn.Embedding(length, width)
                self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
                self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50304, bias=False)
                self.head.weight = self.tokens.weight

            def forward(self, x):
                places = torch.arange(x.shape[1], device=x.device)
                return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))

        return Model()

    def batch(torch):
        x = torch.randint(0, 50304, (bs, length + 1), device="cuda")
        return x[:, :-1], x[:, 1:]

    def loss(torch, m, b):
        return torch.nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())

    return make, batch, loss


def mixer(torch):
    from torch import nn

    class Mix(nn.Module):
        def __init__(self, patches, width):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
            self.along = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

        def forward(self, x):
            x = x + self.across(self.a(x).transpose(1, 2)).transpose(1, 2)
            return x + self.along(self.b(x))

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 512, 16, 16)
            self.body = nn.Sequential(*[Mix(196, 512) for _ in range(8)])
            self.head = nn.Linear(512, 1000)

        def forward(self, x):
            return self.head(self.body(self.stem(x).flatten(2).transpose(1, 2)).mean(1))

    return Mixer()


def point_net(torch):
    from torch import nn

    class PointNet(nn.Module):
        def __init__(self):
            super().__init__()
            layers, last = [], 3
            for width in (64, 64, 128, 1024):
                layers += [nn.Conv1d(last, width, 1), nn.BatchNorm1d(width), nn.ReLU()]
                last = width
            self.each = nn.Sequential(*layers)
            self.all = nn.Sequential(
                nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 40)
            )  # fmt: skip

        def forward(self, x):
            return self.all(self.each(x).amax(2))

    return PointNet()


def conformer(torch):
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=256):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
            self.feeds = nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(width, 1024), nn.SiLU(), nn.Dropout(0.1), nn.Linear(1024, width))
                    for _ in range(2)
                ]
            )  # fmt: skip
            self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
            self.gate, self.out = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
            self.depth = nn.Conv1d(width, width, 31, padding=15, groups=width)
            self.batch = nn.BatchNorm1d(width)

        def forward(self, x):
            x = x + 0.5 * self.feeds[0](self.norms[0](x))
            y = self.norms[1](x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            y = nn.functional.glu(self.gate(self.norms[2](x).transpose(1, 2)), dim=1)
            y = self.out(nn.functional.silu(self.batch(self.depth(y))))
            x = x + y.transpose(1, 2)
            return x + 0.5 * self.feeds[1](self.norms[3](x))

    class Conformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.Sequential(
                nn.Conv2d(1, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()
            )
            self.enter = nn.Linear(64 * 20, 256)
            self.blocks = nn.Sequential(*[Block() for _ in range(8)])
            self.head = nn.Linear(256, 64)

        def forward(self, x):
            x = self.front(x)
            x = self.enter(x.transpose(1, 2).flatten(2))
            return self.head(self.blocks(x)).log_softmax(-1).transpose(0, 1)

    return Conformer()


def conformer_batch(torch):
    return torch.randn(16, 1, 800, 80, device="cuda"), torch.randint(1, 64, (16, 40), device="cuda")


def ctc(torch, m, b):
    out = m(b[0])
    inputs = torch.full((16,), out.shape[0], dtype=torch.long, device="cuda")
    targets = torch.full((16,), 40, dtype=torch.long, device="cuda")
    return torch.nn.functional.ctc_loss(out.float(), b[1], inputs, targets)


def click_model(torch):
    from torch import nn

    class Clicks(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(16)])
            self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
            self.top = nn.Sequential(
                nn.Linear(64 + 17 * 16 // 2, 512), nn.ReLU(), nn.Linear(512, 1)
            )

        def forward(self, x, ids):
            dense = self.dense(x)
            all_ = torch.stack([dense, *[bag(ids[i]) for i, bag in enumerate(self.bags)]], 1)
            pairs = all_ @ all_.transpose(1, 2)
            row, column = torch.triu_indices(17, 17, 1, device=x.device)
            return self.top(torch.cat([dense, pairs[:, row, column]], 1)).squeeze(1)

    return Clicks()


def click_batch(torch):
    return (
        torch.randn(16384, 13, device="cuda"),
        torch.randint(0, 100_000, (16, 16384, 8), device="cuda"),
        torch.randint(0, 2, (16384,), device="cuda").float(),
    )


def click_loss(torch, m, b):
    return torch.nn.functional.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2])


def upscaler(torch):
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(96, 96, 3, 1, 1), nn.PReLU(), nn.Conv2d(96, 96, 3, 1, 1)
            )

        def forward(self, x):
            return x + 0.1 * self.body(x)

    return nn.Sequential(
        nn.Conv2d(3, 96, 3, 1, 1),
        *[Residual() for _ in range(12)],
        nn.Conv2d(96, 384, 3, 1, 1),
        nn.PixelShuffle(2),
        nn.Conv2d(96, 3, 3, 1, 1),
    )


def upscaler_batch(torch):
    return torch.randn(8, 3, 128, 128, device="cuda"), torch.randn(8, 3, 256, 256, device="cuda")


def gru_tagger(torch):
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20_000, 300)
            self.body = nn.GRU(300, 512, 2, batch_first=True, bidirectional=True, dropout=0.2)
            self.head = nn.Linear(1024, 50)

        def forward(self, x):
            return self.head(self.body(self.words(x))[0])

    return Tagger()


def variational(torch):
    from torch import nn

    class Variational(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(
                nn.Conv2d(3, 64, 4, 2, 1), nn.GroupNorm(8, 64), nn.SiLU(),
                nn.Conv2d(64, 128, 4, 2, 1), nn.GroupNorm(8, 128), nn.SiLU(),
                nn.Conv2d(128, 8, 3, 1, 1),
            )  # fmt: skip
            self.decode = nn.Sequential(
                nn.ConvTranspose2d(4, 128, 4, 2, 1), nn.GroupNorm(8, 128), nn.SiLU(),
                nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.GroupNorm(8, 64), nn.SiLU(),
                nn.Conv2d(64, 3, 3, 1, 1),
            )  # fmt: skip

        def forward(self, x):
            mean, spread = self.encode(x).chunk(2, 1)
            code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
            return self.decode(code), mean, spread

    return Variational()


def variational_loss(torch, m, x):
    back, mean, spread = m(x)
    apart = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
    return torch.nn.functional.mse_loss(back, x) + 0.1 * apart


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def seq2seq(bs, length):
    def batch(torch, c):
        x = torch.randint(5, c.vocab_size, (bs, length), device="cuda")
        return dict(input_ids=x, labels=x)

    return batch


JOBS = {
    "resnet101_b48": lambda: torchvision_model("resnet101", 48),
    "resnext50_b32_bf16_cl": lambda: torchvision_model("resnext50_32x4d", 32, amp="bf16", cl=True),
    "efficientnet_v2_s_b32_fp16": lambda: torchvision_model("efficientnet_v2_s", 32, amp="fp16"),
    "vit_l_16_b16_bf16": lambda: torchvision_model("vit_l_16", 16, opt="adamw", amp="bf16"),
    "swin_v2_t_b16": lambda: torchvision_model("swin_v2_t", 16, opt="adamw"),
    "regnet_x_1_6gf_b64_cl": lambda: torchvision_model("regnet_x_1_6gf", 64, cl=True),
    "nano_gpt_bf16": lambda: module(
        *nano_gpt(16, 512, 768, 8, 12, True), opt="adamw_fused", amp="bf16"
    ),
    "nano_gpt_unfused": lambda: module(*nano_gpt(8, 512, 512, 6, 8, False), opt="adamw"),
    "bert_large_b16": lambda: transformers_model(
        "BertForSequenceClassification", "BertConfig", 16, 256, hidden_size=1024,
        intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
    ),
    "electra_small_b32": lambda: hf(
        "ElectraForMaskedLM", "ElectraConfig", masked(32, 128), opt="adamw"
    ),
    "t5_base_b8": lambda: hf(
        "T5ForConditionalGeneration", "T5Config", seq2seq(8, 256), d_model=768, d_kv=64, d_ff=3072,
        num_layers=12, num_heads=12, use_cache=False, decoder_start_token_id=0,
    ),
    "qwen3_300m_b2_bf16": lambda: transformers_model(
        "Qwen3ForCausalLM", "Qwen3Config", 2, 2048, amp=None, dtype="bfloat16", vocab_size=32000,
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=8, head_dim=64, use_cache=False,
    ),
    "deit_b64_fp32": lambda: hf(
        "ViTForImageClassification", "ViTConfig", images(64, 224, 2), amp=None, hidden_size=384,
        intermediate_size=1536, num_attention_heads=6,
    ),
    "mixer_b64_bf16": lambda: module(
        mixer,
        lambda torch: (torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")),
        classify, opt="adamw", amp="bf16",
    ),
    "point_net_b32": lambda: module(
        point_net,
        lambda torch: (torch.randn(32, 3, 2048, device="cuda"), torch.randint(0, 40, (32,), device="cuda")),
        classify,
    ),
    "conformer_b16_fp16": lambda: module(conformer, conformer_batch, ctc, amp="fp16"),
    "click_model_b16384": lambda: module(click_model, click_batch, click_loss, opt="sgd"),
    "upscaler_b8_bf16": lambda: module(
        upscaler, upscaler_batch, lambda torch, m, b: (m(b[0]) - b[1]).abs().mean(), amp="bf16"
    ),
    "gru_tagger_b64": lambda: module(
        gru_tagger,
        lambda torch: (torch.randint(0, 20_000, (64, 100), device="cuda"), torch.randint(0, 50, (64, 100), device="cuda")),
        lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten()),
        opt="sgd",
    ),
}  # fmt: skip
INFERENCE = {"infer_convnext_small_b64_half": lambda: torchvision_model("convnext_small", 64)}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
