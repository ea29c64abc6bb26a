"""Jobs written on 2026-11-26, later than `fresh3.py` and of other kinds, before a coefficient of the clocks was changed for them; priced once.

`python fresh4.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

from builders import hf, masked, module, torchvision_model
from training import main


def squares(torch, m, b):
    return torch.nn.functional.mse_loss(m(b[0]), b[1])


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1])


def pair(left, right):
    return lambda torch: (torch.randn(*left, device="cuda"), torch.randn(*right, device="cuda"))


def labelled(*size, classes):
    return lambda torch: (torch.randn(size, device="cuda"), torch.randint(0, classes, size[:1], device="cuda"))  # fmt: skip


def words(count, length, vocabulary):
    return lambda torch: torch.randint(0, vocabulary, (count, length), device="cuda")


def next_word(torch, m, x):
    return torch.nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def codebook(torch):
    """Pictures through the nearest entries of a table."""
    from torch import nn

    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(3, 64, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(64, 128, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(128, 64, 3, 1, 1),
            )
            self.table = nn.Embedding(512, 64)
            self.up = nn.Sequential(
                nn.ConvTranspose2d(64, 128, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(128, 3, 4, 2, 1)
            )

        def forward(self, x):
            z = self.down(x).permute(0, 2, 3, 1)
            flat = z.reshape(-1, 64)
            far = (
                flat.square().sum(1, keepdim=True)
                + self.table.weight.square().sum(1)
                - 2 * flat @ self.table.weight.t()
            )
            near = self.table(far.argmin(1)).view_as(z)
            loss = (near - z.detach()).square().mean() + 0.25 * (near.detach() - z).square().mean()
            return self.up((z + (near - z).detach()).permute(0, 3, 1, 2)), loss

    return Codebook()  # fmt: skip


def coded(torch, m, x):
    y, loss = m(x)
    return torch.nn.functional.mse_loss(y, x) + loss


def couplings(torch):
    """A flow of affine couplings and rotations of channels, with their determinants."""
    from torch import nn

    class Step(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.turn = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
            self.net = nn.Sequential(
                nn.Conv2d(channels // 2, 128, 3, 1, 1),
                nn.ReLU(),
                nn.Conv2d(128, 128, 1),
                nn.ReLU(),
                nn.Conv2d(128, channels, 3, 1, 1),
            )

        def forward(self, x):
            x = torch.nn.functional.conv2d(x, self.turn[..., None, None])
            log = torch.linalg.slogdet(self.turn)[1] * x.shape[2] * x.shape[3]
            a, b = x.chunk(2, 1)
            scale, shift = self.net(a).chunk(2, 1)
            scale = torch.sigmoid(scale + 2)
            return torch.cat([a, b * scale + shift], 1), log + scale.log().sum((1, 2, 3))

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.ModuleList([Step(12) for _ in range(8)])

        def forward(self, x):
            x, total = nn.functional.pixel_unshuffle(x, 2), 0
            for step in self.steps:
                x, log = step(x)
                total = total + log
            return (x.square().sum((1, 2, 3)) / 2 - total).mean()

    return Flow()  # fmt: skip


def differential(torch):
    """An equation of a network, integrated by Runge and Kutta's method."""
    from torch import nn

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))

        def forward(self, x):
            h = 0.1
            for _ in range(10):
                a = self.net(x)
                b = self.net(x + h / 2 * a)
                c = self.net(x + h / 2 * b)
                d = self.net(x + h * c)
                x = x + h / 6 * (a + 2 * b + 2 * c + d)
            return x

    return Field()


def adapters(torch):
    """A frozen encoder with small matrices that are trained beside its own."""
    from torch import nn

    class Low(nn.Module):
        def __init__(self, line, rank=8):
            super().__init__()
            self.line = line.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, line.in_features) * 0.02)
            self.b = nn.Parameter(torch.zeros(line.out_features, rank))

        def forward(self, x):
            return self.line(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b)

    import transformers

    m = transformers.BertForSequenceClassification(transformers.BertConfig()).requires_grad_(False)
    for layer in m.bert.encoder.layer:
        own = layer.attention.self
        own.query, own.value = Low(own.query), Low(own.value)
    m.classifier.requires_grad_(True)
    return m


def adapted(torch, m, x):
    return m(input_ids=x, labels=x[:, 0] % 2).loss


def distilled(torch):
    import torchvision
    from torch import nn

    return nn.ModuleList([torchvision.models.resnet18(), torchvision.models.resnet50().requires_grad_(False)])  # fmt: skip


def soft(torch, m, x):
    with torch.no_grad():
        told = m[1](x)
    return torch.nn.functional.kl_div(m[0](x).log_softmax(-1), told.softmax(-1), reduction="batchmean")  # fmt: skip


def capsules(torch):
    """Vectors that agree by routing."""
    from torch import nn

    class Capsules(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, 2)
            self.weight = nn.Parameter(torch.randn(1152, 10, 16, 8) * 0.05)

        def squash(self, x):
            size = x.square().sum(-1, keepdim=True)
            return x * size.sqrt() / (1 + size)

        def forward(self, x):
            x = self.second(torch.relu(self.first(x))).view(len(x), 32, 8, 36)
            x = self.squash(x.permute(0, 1, 3, 2).reshape(len(x), 1152, 8))
            votes = torch.einsum("nomi,bni->bnom", self.weight, x)
            logits = torch.zeros(len(x), 1152, 10, device=x.device)
            for _ in range(3):
                out = self.squash((logits.softmax(-1)[..., None] * votes).sum(1))
                logits = logits + (votes * out[:, None]).sum(-1)
            return out.norm(dim=-1)

    return Capsules()


def linear_attention(torch):
    """Attention by sums of outer products, in chunks."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=384, heads=6):
            super().__init__()
            self.norm, self.heads, self.qkv, self.out = (
                nn.LayerNorm(width),
                heads,
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
            )
            self.mlp = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
            )

        def forward(self, x):
            n, length, width = x.shape
            q, k, v = (
                self.qkv(self.norm(x))
                .view(n, length // 64, 64, 3, self.heads, -1)
                .permute(3, 0, 4, 1, 2, 5)
            )
            q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
            states = (k.mT @ v).cumsum(2).roll(1, 2)
            inner = (q @ k.mT).tril() @ v
            return (
                x := x
                + self.out((q @ states + inner).permute(0, 2, 3, 1, 4).reshape(n, length, width))
            ) + self.mlp(x)

    return nn.Sequential(nn.Embedding(8000, 384), *[Block() for _ in range(6)], nn.Linear(384, 8000))  # fmt: skip


def scanned(torch):
    """States that a Python loop carries through a sequence, with gates that depend on the input."""
    from torch import nn

    class Scan(nn.Module):
        def __init__(self, width=256, states=16):
            super().__init__()
            self.enter, self.gates, self.leave = (
                nn.Linear(width, 2 * width),
                nn.Linear(width, width + 2 * states),
                nn.Linear(width, width),
            )
            self.near = nn.Conv1d(width, width, 4, padding=3, groups=width)
            self.log, self.states = nn.Parameter(torch.zeros(width, states)), states

        def forward(self, x):
            y, z = self.enter(x).chunk(2, -1)
            y = nn.functional.silu(self.near(y.mT)[..., : x.shape[1]].mT)
            step, b, c = self.gates(y).split([y.shape[-1], self.states, self.states], -1)
            step = nn.functional.softplus(step)
            keep, add = (
                torch.exp(-step[..., None] * self.log.exp()),
                (step * y)[..., None] * b[:, :, None],
            )
            state, outs = torch.zeros_like(keep[:, 0]), []
            for at in range(x.shape[1]):
                state = keep[:, at] * state + add[:, at]
                outs.append((state * c[:, at, None]).sum(-1))
            return x + self.leave(torch.stack(outs, 1) * nn.functional.silu(z))

    return nn.Sequential(nn.Linear(8, 256), Scan(), Scan(), nn.Linear(256, 8))  # fmt: skip


def latents(torch):
    """Few vectors that look at many."""
    from torch import nn

    class Reader(nn.Module):
        def __init__(self, width=512):
            super().__init__()
            self.own = nn.Parameter(torch.randn(128, width) * 0.02)
            self.enter, self.cross = (
                nn.Linear(64, width),
                nn.MultiheadAttention(width, 8, batch_first=True),
            )
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(
                    width, 8, 4 * width, batch_first=True, norm_first=True, dropout=0.0
                ),
                6,
                enable_nested_tensor=False,
            )
            self.out = nn.Linear(width, 100)

        def forward(self, x):
            many = self.enter(x)
            few = self.own.expand(len(x), -1, -1)
            few = few + self.cross(few, many, many, need_weights=False)[0]
            return self.out(self.body(few).mean(1))

    return Reader()  # fmt: skip


def columns(torch):
    """A table's columns as tokens."""
    from torch import nn

    class Table(nn.Module):
        def __init__(self, width=192):
            super().__init__()
            self.weight, self.bias = (
                nn.Parameter(torch.randn(40, width) * 0.1),
                nn.Parameter(torch.zeros(40, width)),
            )
            self.kinds = nn.ModuleList([nn.Embedding(100, width) for _ in range(8)])
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(
                    width, 8, 2 * width, batch_first=True, activation="gelu"
                ),
                3,
            )
            self.out = nn.Linear(width, 1)

        def forward(self, x, kinds):
            tokens = [x[..., None] * self.weight + self.bias]
            tokens += [table(kinds[:, at])[:, None] for at, table in enumerate(self.kinds)]
            return self.out(self.body(torch.cat(tokens, 1))[:, 0])

    return Table()  # fmt: skip


def table(torch):
    return torch.randn(2048, 40, device="cuda"), torch.randint(0, 100, (2048, 8), device="cuda"), torch.randn(2048, 1, device="cuda")  # fmt: skip


def masked_patches(torch):
    """Most patches are dropped by a random order, and put back for a small decoder."""
    from torch import nn

    def encoder(width, heads, depth):
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                width,
                heads,
                4 * width,
                batch_first=True,
                norm_first=True,
                activation="gelu",
                dropout=0.0,
            ),
            depth,
            enable_nested_tensor=False,
        )

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.place = (
                nn.Linear(768, 384),
                nn.Parameter(torch.randn(1, 196, 384) * 0.02),
            )
            self.body, self.between, self.tail = (
                encoder(384, 6, 8),
                nn.Linear(384, 192),
                encoder(192, 6, 2),
            )
            self.blank, self.out = nn.Parameter(torch.zeros(1, 1, 192)), nn.Linear(192, 768)

        def forward(self, x):
            patches = nn.functional.unfold(x, 16, stride=16).mT
            order = torch.rand(len(x), 196, device=x.device).argsort(1)
            back = order.argsort(1)
            pick = lambda t, index: t.gather(1, index[..., None].expand(-1, -1, t.shape[-1]))
            h = self.body(pick(self.patch(patches) + self.place, order[:, :49]))
            h = self.between(h)
            h = torch.cat([h, self.blank.expand(len(x), 147, -1).to(h.dtype)], 1)
            y = self.out(self.tail(pick(h, back)))
            return (y - patches).square().mean()

    return Masked()  # fmt: skip


def triplets(torch, m, x):
    """Pictures of a class must be nearer to each other than to the nearest of another."""
    z = torch.nn.functional.normalize(m(x), dim=-1)
    far = torch.cdist(z, z)
    kind = torch.arange(len(x), device=x.device) // 4
    same = kind[:, None] == kind
    near = far.masked_fill(same, 9.0).amin(1)
    return torch.relu((far * same).amax(1) - near + 0.2).mean()


def small_net(torch):
    import torchvision

    return torchvision.models.mobilenet_v3_large(num_classes=64)


def factors(torch):
    """Users and things, a vector and a bias each."""
    from torch import nn

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.things = nn.Embedding(200_000, 64), nn.Embedding(50_000, 64)
            self.user, self.thing = nn.Embedding(200_000, 1), nn.Embedding(50_000, 1)

        def forward(self, u, t):
            return (self.users(u) * self.things(t)).sum(-1) + (self.user(u) + self.thing(t))[:, 0]

    return Factors()


def ratings(torch):
    return torch.randint(0, 200_000, (65_536,), device="cuda"), torch.randint(0, 50_000, (65_536,), device="cuda"), torch.rand(65_536, device="cuda")  # fmt: skip


def clips(torch):
    import torchvision

    return torchvision.models.video.s3d(num_classes=50)


def floods(torch):
    import torchvision

    return torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=8)  # fmt: skip


def motion(torch):
    import torchvision

    return torchvision.models.optical_flow.raft_small()


def moved(torch, m, b):
    return sum((flow - b[1]).abs().mean() for flow in m(b[0][:, 0], b[0][:, 1], num_flow_updates=6))


JOBS = {
    "codebook_b64": lambda: module(codebook, lambda torch: torch.rand(64, 3, 128, 128, device="cuda"), coded),
    "couplings_b64": lambda: module(couplings, lambda torch: torch.rand(64, 3, 32, 32, device="cuda"), lambda torch, m, x: m(x)),
    "differential_4096": lambda: module(differential, pair((4096, 64), (4096, 64)), squares),
    "adapters_b16_bf16": lambda: module(adapters, words(16, 256, 30_000), adapted, opt="adamw", amp="bf16"),
    "distilled_b64_bf16": lambda: module(distilled, lambda torch: torch.randn(64, 3, 160, 160, device="cuda"), soft, opt="sgd", amp="bf16"),
    "capsules_b64": lambda: module(capsules, lambda torch: (torch.rand(64, 1, 28, 28, device="cuda"), torch.rand(64, 10, device="cuda")), squares),
    "linear_attention_b8_bf16": lambda: module(linear_attention, words(8, 2048, 8000), next_word, opt="adamw", amp="bf16"),
    "scanned_b16": lambda: module(scanned, pair((16, 128, 8), (16, 128, 8)), squares),
    "latents_b32_bf16": lambda: module(latents, labelled(32, 2048, 64, classes=100), classify, opt="adamw", amp="bf16"),
    "columns_b2048": lambda: module(columns, table, lambda torch, m, b: torch.nn.functional.mse_loss(m(b[0], b[1]), b[2]), opt="adamw"),
    "masked_patches_b64_fp16": lambda: module(masked_patches, lambda torch: torch.randn(64, 3, 224, 224, device="cuda"), lambda torch, m, x: m(x), opt="adamw", amp="fp16"),
    "triplets_b256": lambda: module(small_net, lambda torch: torch.randn(256, 3, 128, 128, device="cuda"), triplets, opt="sgd"),
    "factors_65536": lambda: module(factors, ratings, lambda torch, m, b: torch.nn.functional.mse_loss(m(b[0], b[1]), b[2])),
    "clips_b4_bf16": lambda: module(clips, labelled(4, 3, 16, 160, 160, classes=50), classify, opt="sgd", amp="bf16"),
    "floods_b16": lambda: module(floods, lambda torch: (torch.randn(16, 3, 320, 320, device="cuda"), torch.randint(0, 8, (16, 320, 320), device="cuda")), lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0])["out"], b[1]), opt="sgd"),
    "motion_b2": lambda: module(motion, lambda torch: (torch.rand(2, 2, 3, 256, 320, device="cuda"), torch.randn(2, 2, 256, 320, device="cuda")), moved, opt="adamw"),
    "mnasnet_0_5_b128_bf16_cl": lambda: torchvision_model("mnasnet0_5", 128, amp="bf16", cl=True),
    "fnet_mlm_b16_256": lambda: hf("FNetForMaskedLM", "FNetConfig", lambda torch, c: {k: v for k, v in masked(16, 256)(torch, c).items() if k != "attention_mask"}, hidden_size=512, num_hidden_layers=6, intermediate_size=2048),
    "squeezebert_mlm_b16_128": lambda: hf("SqueezeBertForMaskedLM", "SqueezeBertConfig", masked(16, 128), amp=None),
    "convbert_mlm_b8_128": lambda: hf("ConvBertForMaskedLM", "ConvBertConfig", masked(8, 128), num_hidden_layers=6),
}  # fmt: skip
INFERENCE = {
    "infer_densenet201_b64_half": lambda: torchvision_model("densenet201", 64),
    "infer_regnet_y_3_2gf_b64": lambda: torchvision_model("regnet_y_3_2gf", 64),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
