"""Images: classifiers, segmentation, U-Nets, generators, video; cuDNN in benchmark and deterministic mode.

`python vision.py NAME` as in training.py.
"""

from builders import hf, images, module, setting, torchvision_model
from training import main


def unet(bs, res, amp):
    def build():
        import torch
        from torch import nn

        def blk(i, o):
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
                nn.Conv2d(o, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
            )

        class U(nn.Module):
            def __init__(s, c=(64, 128, 256, 512, 1024)):
                super().__init__()
                s.d = nn.ModuleList([blk(i, o) for i, o in zip((3,) + c[:-1], c)])
                s.u = nn.ModuleList(
                    [nn.ConvTranspose2d(i, o, 2, 2) for i, o in zip(c[:0:-1], c[-2::-1])]
                )
                s.b = nn.ModuleList([blk(i, o) for i, o in zip(c[:0:-1], c[-2::-1])])
                s.o = nn.Conv2d(c[0], 2, 1)
                s.p = nn.MaxPool2d(2)

            def forward(s, x):
                k = []
                for i, d in enumerate(s.d):
                    x = d(x)
                    if i < len(s.d) - 1:
                        k.append(x)
                        x = s.p(x)
                for u, b in zip(s.u, s.b):
                    x = u(x)
                    x = b(torch.cat([k.pop(), x], 1))
                return s.o(x)

        m = U().cuda()

        def batch():
            return torch.randn(bs, 3, res, res, device="cuda"), torch.randint(
                0, 2, (bs, res, res), device="cuda"
            )

        return m, batch, lambda b: nn.functional.cross_entropy(m(b[0]), b[1])

    return dict(build=build, opt="adam", amp=amp)


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


JOBS = {
    "resnet18_b64": lambda: torchvision_model("resnet18", 64),
    "resnet50_b32": lambda: torchvision_model("resnet50", 32),
    "resnet50_b128_bf16_cl": lambda: torchvision_model("resnet50", 128, amp="bf16", cl=True),
    "mobilenet_v3_b128": lambda: torchvision_model("mobilenet_v3_large", 128),
    "vgg16_b64": lambda: torchvision_model("vgg16", 64),
    "vit_b_16_b64_bf16": lambda: torchvision_model("vit_b_16", 64, amp="bf16", opt="adamw"),
    "unet_b8_256": lambda: unet(8, 256, None),
    "vgg16_b64_bench": lambda: setting(lambda: torchvision_model("vgg16", 64), benchmark=True),
    "unet_b8_256_bench": lambda: setting(lambda: unet(8, 256, None), benchmark=True),
    "densenet121_b32": lambda: torchvision_model("densenet121", 32),
    "efficientnet_b0_b64_bf16": lambda: torchvision_model("efficientnet_b0", 64, amp="bf16"),
    "convnext_tiny_b32_bf16_cl": lambda: torchvision_model(
        "convnext_tiny", 32, amp="bf16", cl=True, opt="adamw"
    ),
    "swin_t_b32_fp16": lambda: torchvision_model("swin_t", 32, amp="fp16", opt="adamw"),
    "mobilenet_v2_b64_cl": lambda: torchvision_model("mobilenet_v2", 64, cl=True),
    "alexnet_b128": lambda: torchvision_model("alexnet", 128),
    "resnet50_b32_fp16": lambda: torchvision_model("resnet50", 32, amp="fp16"),
    "regnet_y_400mf_b64_bf16": lambda: torchvision_model("regnet_y_400mf", 64, amp="bf16"),
    "deeplabv3_b4": lambda: segmentation("deeplabv3_resnet50"),
    "hf_vit_b32": lambda: hf(
        "ViTForImageClassification", "ViTConfig", images(32, 224, 2), num_labels=2
    ),
    "conv3d_b8": conv3d,
    "dcgan_b256": dcgan,
    "diffusion_unet_b16_fp16": diffusion_unet,
    "resnet50_b64_bench": lambda: setting(
        lambda: torchvision_model("resnet50", 64), benchmark=True
    ),
    "efficientnet_b2_b32_bench_bf16": lambda: setting(
        lambda: torchvision_model("efficientnet_b2", 32, amp="bf16"), benchmark=True
    ),
    "resnet34_b64_deterministic": lambda: setting(
        lambda: torchvision_model("resnet34", 64), deterministic=True
    ),
    "squeezenet_b64": lambda: torchvision_model("squeezenet1_1", 64),
    "shufflenet_b128_cl_fp16": lambda: torchvision_model(
        "shufflenet_v2_x1_0", 128, amp="fp16", cl=True
    ),
    "maxvit_t_b16_bf16": lambda: torchvision_model("maxvit_t", 16, amp="bf16", opt="adamw"),
    "wide_resnet50_b32_bf16": lambda: torchvision_model("wide_resnet50_2", 32, amp="bf16"),
    "vae_b256": vae,
    "clip_b32_fp16": contrastive,
    "segformer_b8": lambda: hf(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        lambda torch, c: dict(
            pixel_values=torch.randn(8, 3, 256, 256, device="cuda"),
            labels=torch.randint(0, 20, (8, 256, 256), device="cuda"),
        ),
        num_labels=20,
    ),
}
INFERENCE = {
    "infer_resnet152_b256_half": lambda: torchvision_model("resnet152", 256),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
