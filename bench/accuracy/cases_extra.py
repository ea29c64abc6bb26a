"""Jobs of other kinds than those of cases.py, measured on the same H200 to see whether the figures hold beyond them.

Same interface and output as cases.py: `python cases_extra.py NAME`.
"""

import json, os, sys
import cases as C


def hf(cls, config, batch, opt="adamw", amp="bf16", **cfg):
    """A transformers model from its configuration; `batch(config)` makes the keyword arguments."""

    def build():
        import torch, transformers as T

        c = getattr(T, config)(**cfg)
        with torch.device("cuda"):
            m = getattr(T, cls)(c)
        return m.train(), lambda: batch(torch, c), lambda b: m(**b).loss

    return dict(build=build, opt=opt, amp=amp)


def lm(bs, seq):
    def batch(torch, c):
        x = torch.randint(0, c.vocab_size, (bs, seq), device="cuda")
        return dict(input_ids=x, labels=x)

    return batch


def masked(bs, seq):
    """Padded sequences with an attention mask, as a collator makes them."""

    def batch(torch, c):
        x = torch.randint(5, c.vocab_size, (bs, seq))
        mask = torch.ones_like(x)
        for i in range(bs):
            mask[i, seq - i * seq // (2 * bs) :] = 0
        return dict(
            input_ids=x.cuda(),
            attention_mask=mask.cuda(),
            labels=torch.where(mask.bool(), x, -100).cuda(),
        )

    return batch


def images(bs, res, classes):
    def batch(torch, c):
        return dict(
            pixel_values=torch.randn(bs, 3, res, res, device="cuda"),
            labels=torch.randint(0, classes, (bs,), device="cuda"),
        )

    return batch


def module(make, batch, loss, opt="adam", amp=None):
    """A plain module: `make(torch)`, `batch(torch)`, `loss(torch, model, batch)`."""

    def build():
        import torch

        m = make(torch).cuda().train()
        return m, lambda: batch(torch), lambda b: loss(torch, m, b)

    return dict(build=build, opt=opt, amp=amp)


def segmentation(name):
    def build():
        import torch, torchvision

        m = (
            getattr(torchvision.models.segmentation, name)(
                weights=None, weights_backbone=None, num_classes=21
            )
            .cuda()
            .train()
        )
        batch = lambda: (
            torch.randn(4, 3, 320, 320, device="cuda"),
            torch.randint(0, 21, (4, 320, 320), device="cuda"),
        )
        return m, batch, lambda b: torch.nn.functional.cross_entropy(m(b[0])["out"], b[1])

    return dict(build=build, opt="sgd", amp=None)


def dcgan():
    def build():
        import torch
        from torch import nn

        g = nn.Sequential(
            *[
                l
                for i, o, s, p in (
                    (100, 512, 1, 0),
                    (512, 256, 2, 1),
                    (256, 128, 2, 1),
                    (128, 64, 2, 1),
                )
                for l in (
                    nn.ConvTranspose2d(i, o, 4, s, p, bias=False),
                    nn.BatchNorm2d(o),
                    nn.ReLU(True),
                )
            ],
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
            nn.Tanh(),
        )
        d = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            *[
                l
                for i, o in ((64, 128), (128, 256), (256, 512))
                for l in (
                    nn.Conv2d(i, o, 4, 2, 1, bias=False),
                    nn.BatchNorm2d(o),
                    nn.LeakyReLU(0.2, True),
                )
            ],
            nn.Conv2d(512, 1, 4, 1, 0),
        )
        m = nn.ModuleDict(dict(g=g, d=d)).cuda()

        def loss(z):
            fake = g(z)
            bce = nn.functional.binary_cross_entropy_with_logits
            real = d(torch.randn(256, 3, 64, 64, device="cuda")).flatten()
            return (
                bce(real, torch.ones_like(real))
                + bce(d(fake.detach()).flatten(), torch.zeros_like(real))
                + bce(d(fake).flatten(), torch.ones_like(real))
            )

        return m, lambda: torch.randn(256, 100, 1, 1, device="cuda"), loss

    return dict(build=build, opt="adam", amp=None)


def recurrent(kind, amp=None, **kw):
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(20000, 256)
                s.r = getattr(nn, kind)(256, 384, batch_first=True, **kw)
                s.o = nn.Linear(384 * (2 if kw.get("bidirectional") else 1), 20)

            def forward(s, x):
                return s.o(s.r(s.e(x))[0][:, -1])

        return M()

    def batch(torch):
        return torch.randint(0, 20000, (96, 200), device="cuda"), torch.randint(
            0, 20, (96,), device="cuda"
        )

    return module(
        make, batch, lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0]), b[1]), amp=amp
    )


def conv3d():
    def make(torch):
        from torch import nn

        return nn.Sequential(
            *[
                l
                for i, o in ((3, 32), (32, 64), (64, 128))
                for l in (
                    nn.Conv3d(i, o, 3, padding=1),
                    nn.BatchNorm3d(o),
                    nn.ReLU(),
                    nn.MaxPool3d(2),
                )
            ],
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    return module(
        make,
        lambda torch: (
            torch.randn(8, 3, 16, 112, 112, device="cuda"),
            torch.randint(0, 10, (8,), device="cuda"),
        ),
        lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0]), b[1]),
    )


def speech_ctc():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.c = nn.Sequential(
                    nn.Conv1d(80, 256, 5, 2, 2), nn.GELU(), nn.Conv1d(256, 256, 5, 2, 2), nn.GELU()
                )
                s.r = nn.GRU(256, 256, 3, bidirectional=True, batch_first=True, dropout=0.1)
                s.o = nn.Linear(512, 64)

            def forward(s, x):
                return s.o(s.r(s.c(x).transpose(1, 2))[0]).log_softmax(-1).transpose(0, 1)

        return M()

    def loss(torch, m, b):
        p = m(b[0])
        n = torch.full((b[0].shape[0],), p.shape[0], dtype=torch.long)
        return torch.nn.functional.ctc_loss(p, b[1], n, torch.full_like(n, b[1].shape[1]))

    return module(
        make,
        lambda torch: (
            torch.randn(32, 80, 800, device="cuda"),
            torch.randint(1, 64, (32, 30), device="cuda"),
        ),
        loss,
    )


def encoder(amp):
    def make(torch):
        from torch import nn

        return nn.Sequential(
            nn.Linear(64, 512),
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True), 6
            ),
            nn.Linear(512, 64),
        )

    return module(
        make,
        lambda torch: torch.randn(32, 256, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
        opt="adamw",
        amp=amp,
    )


def diffusion_unet():
    def make(torch):
        from torch import nn

        class Res(nn.Module):
            def __init__(s, i, o):
                super().__init__()
                s.a = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
                s.b = nn.Sequential(nn.GroupNorm(32, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
                s.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

            def forward(s, x):
                return s.s(x) + s.b(s.a(x))

        class Att(nn.Module):
            def __init__(s, c):
                super().__init__()
                s.n = nn.GroupNorm(32, c)
                s.q = nn.Conv2d(c, 3 * c, 1)
                s.p = nn.Conv2d(c, c, 1)

            def forward(s, x):
                b, c, h, w = x.shape
                q, k, v = s.q(s.n(x)).reshape(b, 3, 8, c // 8, h * w).transpose(-1, -2).unbind(1)
                return x + s.p(
                    nn.functional.scaled_dot_product_attention(q, k, v)
                    .transpose(-1, -2)
                    .reshape(b, c, h, w)
                )

        class U(nn.Module):
            def __init__(s):
                super().__init__()
                s.i = nn.Conv2d(3, 128, 3, padding=1)
                s.d1 = Res(128, 128)
                s.p1 = nn.Conv2d(128, 128, 3, 2, 1)
                s.d2 = nn.Sequential(Res(128, 256), Att(256))
                s.p2 = nn.Conv2d(256, 256, 3, 2, 1)
                s.m = nn.Sequential(Res(256, 512), Att(512), Res(512, 256))
                s.u2 = nn.Sequential(Res(512, 256), Att(256))
                s.u1 = Res(384, 128)
                s.o = nn.Conv2d(128, 3, 3, padding=1)
                s.up = nn.Upsample(scale_factor=2)

            def forward(s, x):
                a = s.d1(s.i(x))
                b = s.d2(s.p1(a))
                c = s.m(s.p2(b))
                c = s.u2(torch.cat([s.up(c), b], 1))
                return s.o(s.u1(torch.cat([s.up(c), a], 1)))

        return U()

    return module(
        make,
        lambda torch: torch.randn(16, 3, 64, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
        opt="adamw",
        amp="fp16",
    )


def fft_net():
    def make(torch):
        from torch import nn

        class F(nn.Module):
            def __init__(s, c):
                super().__init__()
                s.w = nn.Parameter(torch.randn(c, 64, 33, 2) * 0.02)
                s.m = nn.Sequential(
                    nn.LayerNorm([c, 64, 64]),
                    nn.Conv2d(c, 2 * c, 1),
                    nn.GELU(),
                    nn.Conv2d(2 * c, c, 1),
                )

            def forward(s, x):
                return x + s.m(
                    torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(s.w), s=(64, 64))
                )

        return nn.Sequential(nn.Conv2d(3, 96, 1), *[F(96) for _ in range(4)], nn.Conv2d(96, 3, 1))

    return module(
        make,
        lambda torch: torch.randn(16, 3, 64, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
    )


def recommender():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.ModuleList([nn.EmbeddingBag(200000, 64, mode="sum") for _ in range(8)])
                s.m = nn.Sequential(
                    nn.Linear(512 + 13, 512),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                    nn.Linear(512, 256),
                    nn.ReLU(),
                    nn.Linear(256, 1),
                )

            def forward(s, d, ids):
                return s.m(torch.cat([d] + [e(ids[:, i]) for i, e in enumerate(s.e)], 1)).squeeze(1)

        return M()

    return module(
        make,
        lambda torch: (
            torch.randn(8192, 13, device="cuda"),
            torch.randint(0, 200000, (8192, 8, 4), device="cuda"),
            torch.rand(8192, device="cuda"),
        ),
        lambda torch, m, b: torch.nn.functional.binary_cross_entropy_with_logits(
            m(b[0], b[1]), b[2]
        ),
    )


SMALL = dict(
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=12,
    use_cache=False,
)
SPECS = {
    "densenet121_b32": lambda: C._tv("densenet121", 32),
    "efficientnet_b0_b64_bf16": lambda: C._tv("efficientnet_b0", 64, amp="bf16"),
    "convnext_tiny_b32_bf16_cl": lambda: C._tv(
        "convnext_tiny", 32, amp="bf16", cl=True, opt="adamw"
    ),
    "swin_t_b32_fp16": lambda: C._tv("swin_t", 32, amp="fp16", opt="adamw"),
    "mobilenet_v2_b64_cl": lambda: C._tv("mobilenet_v2", 64, cl=True),
    "alexnet_b128": lambda: C._tv("alexnet", 128),
    "resnet50_b32_fp16": lambda: C._tv("resnet50", 32, amp="fp16"),
    "regnet_y_400mf_b64_bf16": lambda: C._tv("regnet_y_400mf", 64, amp="bf16"),
    "deeplabv3_b4": lambda: segmentation("deeplabv3_resnet50"),
    "distilbert_mlm_b16": lambda: hf("DistilBertForMaskedLM", "DistilBertConfig", masked(16, 256)),
    "roberta_fp32_b8": lambda: hf(
        "RobertaForMaskedLM", "RobertaConfig", masked(8, 256), amp=None, max_position_embeddings=514
    ),
    "opt125m_b8": lambda: hf("OPTForCausalLM", "OPTConfig", masked(8, 512), use_cache=False),
    "mistral_small_b4": lambda: hf(
        "MistralForCausalLM",
        "MistralConfig",
        lm(4, 1024),
        num_key_value_heads=4,
        vocab_size=32000,
        sliding_window=512,
        **SMALL,
    ),
    "gemma_small_b4_eager": lambda: hf(
        "GemmaForCausalLM",
        "GemmaConfig",
        lm(4, 512),
        num_key_value_heads=4,
        head_dim=64,
        attn_implementation="eager",
        **SMALL,
    ),
    "mixtral_small_b4": lambda: hf(
        "MixtralForCausalLM",
        "MixtralConfig",
        lm(4, 512),
        num_key_value_heads=4,
        vocab_size=32000,
        num_local_experts=4,
        **SMALL,
    ),
    "hf_vit_b32": lambda: hf(
        "ViTForImageClassification", "ViTConfig", images(32, 224, 2), num_labels=2
    ),
    "bart_base_b8": lambda: hf(
        "BartForConditionalGeneration",
        "BartConfig",
        masked(8, 256),
        use_cache=False,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    ),
    "gru_bi_b96": lambda: recurrent("GRU", num_layers=2, bidirectional=True, dropout=0.2),
    "lstm_fp16_b96": lambda: recurrent("LSTM", amp="fp16", num_layers=3, dropout=0.1),
    "rnn_tanh_b96": lambda: recurrent("RNN", num_layers=1),
    "conv3d_b8": conv3d,
    "speech_ctc_b32": speech_ctc,
    "dcgan_b256": dcgan,
    "encoder_fp32_b32": lambda: encoder(None),
    "encoder_fp16_b32": lambda: encoder("fp16"),
    "diffusion_unet_b16_fp16": diffusion_unet,
    "fft_net_b16": fft_net,
    "recommender_b8192": recommender,
    "adafactor_gpt2_b4": lambda: C._hf(
        "GPT2LMHeadModel", "GPT2Config", 4, 512, opt="adafactor", use_cache=False
    ),
}

if __name__ == "__main__":
    if sys.argv[1] == "list":
        print("\n".join(SPECS))
        sys.exit()
    C.SPECS.update(SPECS)
    print(
        json.dumps(C.run(sys.argv[1], snapshot=sys.argv[2] if len(sys.argv) > 2 else None)),
        flush=True,
    )
    os._exit(0)
