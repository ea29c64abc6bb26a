"""A second set of jobs that nothing was tuned for: other kinds than cases_extra.py, and other settings of PyTorch.

Same interface and output as cases.py: `python cases_fresh.py NAME`.
"""

import json, os, sys
import cases as C
from cases_extra import hf, images, lm, masked, module


def setting(spec, **flags):
    """`spec` with flags of torch.backends.cudnn, set when the job begins."""
    made = spec()

    def build():
        import torch

        for name, value in flags.items():
            setattr(torch.backends.cudnn, name, value)
        return made["build"]()

    return dict(made, build=build)


def compiled(spec):
    made = spec()

    def build():
        import torch

        m, batch, loss = made["build"]()
        m.forward = torch.compile(m.forward)
        return m, batch, loss

    return dict(made, build=build)


def detection(name, **kw):
    def build():
        import torch, torchvision

        m = (
            getattr(torchvision.models.detection, name)(
                weights=None, weights_backbone=None, num_classes=12, **kw
            )
            .cuda()
            .train()
        )

        def batch():
            boxes = lambda: torch.tensor(
                [[20.0, 30.0, 180.0, 200.0], [60.0, 60.0, 300.0, 260.0], [5.0, 5.0, 90.0, 120.0]],
                device="cuda",
            )
            t = [
                dict(
                    boxes=boxes(),
                    labels=torch.tensor([1, 5, 7], device="cuda"),
                    masks=torch.ones(3, 320, 320, dtype=torch.uint8, device="cuda"),
                )
                for _ in range(4)
            ]
            return [torch.rand(3, 320, 320, device="cuda") for _ in range(4)], t

        return m, batch, lambda b: sum(m(*b).values())

    return dict(build=build, opt="sgd", amp=None)


def graph_net():
    def make(torch):
        from torch import nn

        class Layer(nn.Module):
            def __init__(s, i, o):
                super().__init__()
                s.a, s.b = nn.Linear(i, o), nn.Linear(i, o)

            def forward(s, x, src, dst):
                h = torch.zeros(x.shape[0], x.shape[1], device=x.device).index_add_(0, dst, x[src])
                degree = (
                    torch.zeros(x.shape[0], device=x.device)
                    .scatter_add_(0, dst, torch.ones_like(dst, dtype=torch.float))
                    .clamp(min=1)
                )
                return s.a(x) + s.b(h / degree[:, None])

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.l = nn.ModuleList([Layer(128, 256), Layer(256, 256), Layer(256, 40)])

            def forward(s, x, src, dst):
                for i, l in enumerate(s.l):
                    x = l(x, src, dst)
                    x = x if i == 2 else nn.functional.dropout(x.relu(), 0.5, s.training)
                return x

        return M()

    def batch(torch):
        return (
            torch.randn(50000, 128, device="cuda"),
            torch.randint(0, 50000, (600000,), device="cuda"),
            torch.randint(0, 50000, (600000,), device="cuda"),
            torch.randint(0, 40, (50000,), device="cuda"),
        )

    return module(
        make, batch, lambda torch, m, b: torch.nn.functional.cross_entropy(m(*b[:3]), b[3])
    )


def vae():
    def make(torch):
        from torch import nn

        class V(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Sequential(
                    *[
                        l
                        for i, o in ((3, 32), (32, 64), (64, 128), (128, 256))
                        for l in (nn.Conv2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.LeakyReLU())
                    ],
                    nn.Flatten(),
                )
                s.mu, s.lv = nn.Linear(4096, 128), nn.Linear(4096, 128)
                s.i = nn.Linear(128, 4096)
                s.d = nn.Sequential(
                    *[
                        l
                        for i, o in ((256, 128), (128, 64), (64, 32))
                        for l in (
                            nn.ConvTranspose2d(i, o, 3, 2, 1, 1),
                            nn.BatchNorm2d(o),
                            nn.LeakyReLU(),
                        )
                    ],
                    nn.ConvTranspose2d(32, 3, 3, 2, 1, 1),
                    nn.Sigmoid(),
                )

            def forward(s, x):
                h = s.e(x)
                mu, lv = s.mu(h), s.lv(h)
                return (
                    s.d(s.i(mu + torch.randn_like(mu) * (lv / 2).exp()).view(-1, 256, 4, 4)),
                    mu,
                    lv,
                )

        return V()

    def loss(torch, m, x):
        y, mu, lv = m(x)
        return (
            torch.nn.functional.binary_cross_entropy(y, x, reduction="sum") / len(x)
            - 0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
        )

    return module(make, lambda torch: torch.rand(256, 3, 64, 64, device="cuda"), loss)


def translator():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(12000, 512, padding_idx=0)
                s.t = nn.Transformer(512, 8, 4, 4, 2048, batch_first=True)
                s.o = nn.Linear(512, 12000)

            def forward(s, a, b):
                return s.o(
                    s.t(
                        s.e(a),
                        s.e(b),
                        tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                            b.shape[1], device=b.device
                        ),
                        src_key_padding_mask=a == 0,
                    )
                )

        return M()

    def batch(torch):
        a, b = torch.randint(1, 12000, (48, 96)), torch.randint(1, 12000, (48, 81))
        for i in range(48):
            a[i, 96 - i :] = 0
        return a.cuda(), b.cuda()

    return module(
        make,
        batch,
        lambda torch, m, b: torch.nn.functional.cross_entropy(
            m(b[0], b[1][:, :-1]).flatten(0, 1),
            b[1][:, 1:].flatten(),
            ignore_index=0,
            label_smoothing=0.1,
        ),
        opt="adamw",
        amp="bf16",
    )


def attention_seq2seq():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(8000, 256)
                s.r = nn.GRU(256, 512, batch_first=True, bidirectional=True)
                s.c = nn.GRUCell(256 + 1024, 512)
                s.q = nn.Linear(512, 1024)
                s.o = nn.Linear(1536, 8000)

            def forward(s, a, b):
                k, h = s.r(s.e(a))
                h = h[0]
                out = []
                for t in range(b.shape[1]):
                    w = torch.softmax(torch.einsum("bd,btd->bt", s.q(h), k), 1)
                    c = torch.einsum("bt,btd->bd", w, k)
                    h = s.c(torch.cat([s.e(b[:, t]), c], 1), h)
                    out.append(s.o(torch.cat([h, c], 1)))
                return torch.stack(out, 1)

        return M()

    return module(
        make,
        lambda torch: (
            torch.randint(0, 8000, (64, 60), device="cuda"),
            torch.randint(0, 8000, (64, 30), device="cuda"),
        ),
        lambda torch, m, b: torch.nn.functional.cross_entropy(m(*b).flatten(0, 1), b[1].flatten()),
    )


def pinn():
    """A second derivative: the graph of the gradient is differentiated again."""

    def make(torch):
        from torch import nn

        return nn.Sequential(
            nn.Linear(2, 256),
            nn.Tanh(),
            *[l for _ in range(5) for l in (nn.Linear(256, 256), nn.Tanh())],
            nn.Linear(256, 1),
        )

    def loss(torch, m, x):
        x = x.requires_grad_()
        u = m(x)
        (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (gg,) = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)
        return (g[:, 1] - gg[:, 0]).pow(2).mean() + u.pow(2).mean()

    return module(make, lambda torch: torch.rand(40000, 2, device="cuda"), loss)


def linear_algebra():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.n = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64 * 64))

            def forward(s, x):
                a = s.n(x).view(-1, 64, 64)
                p = a @ a.mT + 4 * torch.eye(64, device=x.device)
                l = torch.linalg.cholesky(p)
                y = torch.linalg.solve(p, x[..., None])
                return (
                    torch.linalg.slogdet(p)[1].mean()
                    + y.pow(2).mean()
                    + torch.linalg.svdvals(a[:16]).sum()
                    + l.diagonal(dim1=-2, dim2=-1).log().mean()
                )

        return M()

    return module(make, lambda torch: torch.randn(512, 64, device="cuda"), lambda torch, m, b: m(b))


def experts():
    """Tokens routed by boolean masks and nonzero, as written by hand."""

    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.i = nn.Linear(64, 512)
                s.g = nn.Linear(512, 8)
                s.e = nn.ModuleList(
                    [
                        nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
                        for _ in range(8)
                    ]
                )
                s.o = nn.Linear(512, 64)

            def forward(s, x):
                h = s.i(x)
                w, k = s.g(h).softmax(-1).topk(2, -1)
                y = torch.zeros_like(h)
                for i, e in enumerate(s.e):
                    t, n = (k == i).nonzero(as_tuple=True)
                    y = y.index_add(0, t, e(h[t]) * w[t, n, None])
                return s.o(y)

        return M()

    return module(
        make,
        lambda torch: torch.randn(16384, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
        opt="adamw",
    )


def frozen_base():
    """Small adapters on a frozen transformer."""

    def build():
        import torch, transformers as T

        with torch.device("cuda"):
            m = T.GPT2LMHeadModel(T.GPT2Config(use_cache=False))
        m.train().requires_grad_(False)

        class Adapter(torch.nn.Module):
            def __init__(s, base):
                super().__init__()
                s.base = base
                n, o = base.weight.shape
                s.a, s.b = torch.nn.Linear(n, 8, bias=False), torch.nn.Linear(8, o, bias=False)

            def forward(s, x):
                return s.base(x) + s.b(s.a(x))

        for block in m.transformer.h:
            block.attn.c_attn = Adapter(block.attn.c_attn).cuda()
        return (
            m,
            lambda: torch.randint(0, 50257, (8, 512), device="cuda"),
            lambda b: m(input_ids=b, labels=b).loss,
        )

    return dict(build=build, opt="adamw", amp="bf16")


def tcn():
    def make(torch):
        from torch import nn

        return nn.Sequential(
            *[
                l
                for i, d in ((16, 1), (128, 2), (128, 4), (128, 8), (128, 16))
                for l in (
                    nn.Conv1d(i, 128, 5, padding=2 * d, dilation=d),
                    nn.BatchNorm1d(128),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                )
            ],
            nn.Conv1d(128, 1, 1),
        )

    return module(
        make,
        lambda torch: torch.randn(64, 16, 2048, device="cuda"),
        lambda torch, m, b: m(b).pow(2).mean(),
    )


def speech():
    def batch(torch, c):
        return dict(
            input_values=torch.randn(4, 64000, device="cuda"),
            labels=torch.randint(1, 30, (4, 40), device="cuda"),
        )

    return hf(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        batch,
        amp=None,
        num_hidden_layers=6,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )


def contrastive():
    def build():
        import torch, transformers as T

        c = T.CLIPConfig()
        with torch.device("cuda"):
            m = T.CLIPModel(c)
        batch = lambda: dict(
            input_ids=torch.randint(1, 49000, (32, 77), device="cuda"),
            pixel_values=torch.randn(32, 3, 224, 224, device="cuda"),
            return_loss=True,
        )
        return m.train(), batch, lambda b: m(**b).loss

    return dict(build=build, opt="adamw", amp="fp16")


SMALL = dict(
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=12,
    use_cache=False,
)
SPECS = {
    "resnet50_b64_bench": lambda: setting(lambda: C._tv("resnet50", 64), benchmark=True),
    "efficientnet_b2_b32_bench_bf16": lambda: setting(
        lambda: C._tv("efficientnet_b2", 32, amp="bf16"), benchmark=True
    ),
    "resnet34_b64_deterministic": lambda: setting(
        lambda: C._tv("resnet34", 64), deterministic=True
    ),
    "resnet18_b64_compiled": lambda: compiled(lambda: C._tv("resnet18", 64)),
    "bert_small_compiled": lambda: compiled(
        lambda: hf("BertForMaskedLM", "BertConfig", masked(16, 256), num_hidden_layers=4)
    ),
    "squeezenet_b64": lambda: C._tv("squeezenet1_1", 64),
    "shufflenet_b128_cl_fp16": lambda: C._tv("shufflenet_v2_x1_0", 128, amp="fp16", cl=True),
    "maxvit_t_b16_bf16": lambda: C._tv("maxvit_t", 16, amp="bf16", opt="adamw"),
    "wide_resnet50_b32_bf16": lambda: C._tv("wide_resnet50_2", 32, amp="bf16"),
    "fasterrcnn_b4": lambda: detection("fasterrcnn_mobilenet_v3_large_fpn"),
    "maskrcnn_b4": lambda: detection("maskrcnn_resnet50_fpn"),
    "graph_net": graph_net,
    "vae_b256": vae,
    "translator_b48": translator,
    "attention_seq2seq_b64": attention_seq2seq,
    "pinn_40000": pinn,
    "linear_algebra_b512": linear_algebra,
    "experts_16384": experts,
    "frozen_base_b8": frozen_base,
    "tcn_b64": tcn,
    "wav2vec2_b4": speech,
    "clip_b32_fp16": contrastive,
    "deberta_b8": lambda: hf(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        lambda torch, c: dict(
            input_ids=torch.randint(5, 30000, (8, 256), device="cuda"),
            attention_mask=torch.ones(8, 256, dtype=torch.long, device="cuda"),
            labels=torch.randint(0, 2, (8,), device="cuda"),
        ),
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1,
        position_buckets=256,
        num_labels=2,
    ),
    "segformer_b8": lambda: hf(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        lambda torch, c: dict(
            pixel_values=torch.randn(8, 3, 256, 256, device="cuda"),
            labels=torch.randint(0, 20, (8, 256, 256), device="cuda"),
        ),
        num_labels=20,
    ),
    "gpt_neox_b4_eager": lambda: hf(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        lm(4, 512),
        attn_implementation="eager",
        vocab_size=32000,
        **SMALL,
    ),
    "phi_b4": lambda: hf(
        "PhiForCausalLM", "PhiConfig", lm(4, 768), amp=None, vocab_size=32000, **SMALL
    ),
    "mamba_b4": lambda: hf(
        "MambaForCausalLM",
        "MambaConfig",
        lm(4, 256),
        vocab_size=32000,
        hidden_size=512,
        num_hidden_layers=4,
        use_cache=False,
    ),
    "gpt2_rmsprop_b4": lambda: C._hf(
        "GPT2LMHeadModel", "GPT2Config", 4, 512, opt="rmsprop", use_cache=False
    ),
}

if __name__ == "__main__":
    if sys.argv[1] == "list":
        print("\n".join(SPECS))
        sys.exit()
    C.SPECS.update(SPECS)
    make_opt = C.make_opt
    C.make_opt = lambda kind, m: (
        __import__("torch").optim.RMSprop(m.parameters(), lr=1e-4, momentum=0.9, centered=True)
        if kind == "rmsprop"
        else make_opt(kind, m)
    )
    print(
        json.dumps(C.run(sys.argv[1], snapshot=sys.argv[2] if len(sys.argv) > 2 else None)),
        flush=True,
    )
    os._exit(0)
