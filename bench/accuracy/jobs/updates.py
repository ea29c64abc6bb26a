"""Rules of updating that people write themselves, and rare options of PyTorch's own optimizers."""

import math

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import built


def autocast():
    return torch.autocast(device, dtype=torch.bfloat16)


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum, which is kept in bfloat16; weight decay is decoupled."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in filter(lambda p: p.grad is not None, group["params"]):
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.bfloat16)
                average = state["exp_avg"].float()
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                update = average.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)
                state["exp_avg"].copy_(average)


@job()
def lion_swin_transformer():
    model = torchvision.models.swin_t(num_classes=100).to(device).train()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = Lion([dict(params=decay, weight_decay=0.5), dict(params=rest)])
    for _ in range(4):
        size = pick(224, 64)
        images = torch.rand(pick(48, 2), 3, size, size, device=device)
        labels = torch.randint(0, 100, (images.size(0),), device=device)
        with autocast():
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


BLOCK = 256


def quantize(x, signed):
    """Blocks of 256 values to bytes, with a scale for each block."""
    flat = F.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scale = flat.abs().amax(1, keepdim=True).clamp_(min=1e-12)
    if signed:
        return (flat / scale * 127).round_().to(torch.int8), scale
    return (flat / scale).sqrt_().mul_(255).round_().to(torch.uint8), scale


def dequantize(codes, scale, like):
    x = codes.float()
    x = x.div_(127) if codes.dtype == torch.int8 else x.div_(255).square_()
    return x.mul_(scale).view(-1)[: like.numel()].view_as(like)


@job()
def adam_with_states_in_bytes():
    """Both moments are kept in eight bits; a moment is unpacked, updated and packed again."""
    config = T.OPTConfig(
        vocab_size=pick(32000, 100),
        hidden_size=pick(1024, 48),
        word_embed_proj_dim=pick(1024, 48),
        ffn_dim=pick(4096, 64),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(16, 4),
        max_position_embeddings=1024,
        use_cache=False,
    )
    model = built(T.OPTForCausalLM, config).train()
    states = {}
    for step in range(1, 5):
        ids = torch.randint(4, config.vocab_size, (pick(8, 2), pick(512, 12)), device=device)
        with autocast():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                g = p.grad
                if p in states:
                    m, v = (dequantize(codes, scale, p) for codes, scale in states[p])
                else:
                    m, v = torch.zeros_like(p), torch.zeros_like(p)
                m.lerp_(g, 0.1)
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                rate = 1e-4 * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                p.addcdiv_(m, v.sqrt().add_(1e-8), value=-rate)
                states[p] = quantize(m, True), quantize(v, False)
                p.grad = None
        yield


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self, width, depth, patches, patch=16, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        mlp = lambda n, hidden: nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.Linear(hidden, n))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(width),
                    mlp(patches, width // 2),
                    nn.LayerNorm(width),
                    mlp(width, 4 * width),
                ]
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for norm1, tokens, norm2, channels in self.layers:
            x = x + tokens(norm1(x).mT).mT
            x = x + channels(norm2(x))
        return self.head(x.mean(1))


@job()
def sophia_hutchinson_diagonal():
    """Every second step the diagonal of the Hessian is estimated by a second backward pass."""
    model = Mixer(pick(512, 32), pick(8, 2), pick(196, 16)).to(device)
    params = list(model.parameters())
    momentum = [torch.zeros_like(p) for p in params]
    hessian = [torch.zeros_like(p) for p in params]
    size = pick(224, 64)
    for step in range(5):
        x = torch.randn(pick(32, 2), 3, size, size, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        loss = F.cross_entropy(model(x), y)
        curvature = step % 2 == 0
        grads = torch.autograd.grad(loss, params, create_graph=curvature)
        if curvature:
            noise = [torch.randint_like(p, 2).mul_(2).sub_(1) for p in params]
            products = torch.autograd.grad(grads, params, noise)
            for h, u, hu in zip(hessian, noise, products):
                h.mul_(0.99).add_(u * hu, alpha=0.01)
        with torch.no_grad():
            for p, g, m, h in zip(params, grads, momentum, hessian):
                m.mul_(0.96).add_(g, alpha=0.04)
                ratio = (m / (0.01 * h).clamp_(min=1e-12)).clamp_(-1, 1)
                p.mul_(1 - 1e-4).add_(ratio, alpha=-1e-3)
        yield loss.item()


class KFAC:
    """Kronecker factors of linear layers, gathered by hooks; inverses by Cholesky every second step."""

    def __init__(self, model, lr=1e-2, damping=1e-2, decay=0.95):
        self.lr, self.damping, self.decay, self.steps = lr, damping, decay, 0
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.a, self.g, self.inverse = {}, {}, {}
        for layer in self.layers:
            layer.register_forward_pre_hook(self.saw_input)
            layer.register_full_backward_hook(self.saw_gradient)

    def average(self, kept, layer, new):
        old = kept.get(layer)
        kept[layer] = new if old is None else self.decay * old + (1 - self.decay) * new

    @torch.no_grad()
    def saw_input(self, layer, args):
        if layer.training:
            x = args[0].detach().flatten(0, -2)
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
            self.average(self.a, layer, x.T @ x / len(x))

    @torch.no_grad()
    def saw_gradient(self, layer, grad_input, grad_output):
        g = grad_output[0].flatten(0, -2) * grad_output[0].shape[0]
        self.average(self.g, layer, g.T @ g / len(g))

    def invert(self, factor):
        eye = torch.eye(len(factor), device=factor.device)
        return torch.cholesky_inverse(torch.linalg.cholesky(factor + self.damping * eye))

    @torch.no_grad()
    def step(self):
        for layer in self.layers:
            if self.steps % 2 == 0:
                self.inverse[layer] = self.invert(self.a[layer]), self.invert(self.g[layer])
            a, g = self.inverse[layer]
            grad = g @ torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1) @ a
            layer.weight.sub_(grad[:, :-1], alpha=self.lr)
            layer.bias.sub_(grad[:, -1], alpha=self.lr)
        self.steps += 1


@job()
def kfac_by_hooks():
    """A deep perceptron by K-FAC."""
    widths = pick((3072, 4096, 4096, 2048, 2048, 1024, 100), (24, 32, 32, 10))
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), nn.SiLU()]
    model = nn.Sequential(*layers[:-1]).to(device)
    optimizer = KFAC(model)
    for _ in range(5):
        x = torch.randn(pick(16384, 8), widths[0], device=device)
        y = torch.randint(0, widths[-1], (len(x),), device=device)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def fused_amsgrad_rate_as_tensor():
    """Fused Adam with its third state; the rate is a tensor on the device that a schedule changes."""
    model = torchvision.models.mnasnet1_0(num_classes=100).to(device)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=torch.tensor(1e-3, device=device), amsgrad=True, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    size = pick(224, 64)
    for _ in range(5):
        x = torch.randn(pick(128, 2), 3, size, size, device=device)
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.randint(0, 100, (len(x),), device=device)
        with autocast():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield


class FlatMaster:
    """A bfloat16 model whose weights and gradients are views into flat buffers; Adam on a float32 copy."""

    def __init__(self, model, lr):
        params = [p for p in model.parameters() if p.requires_grad]
        self.weights = torch.cat([p.detach().flatten() for p in params])
        self.grads = torch.zeros_like(self.weights)
        at = 0
        for p in params:
            p.data = self.weights[at : at + p.numel()].view_as(p)
            p.grad = self.grads[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.master = nn.Parameter(self.weights.float())
        self.adam = torch.optim.AdamW([self.master], lr=lr)

    def step(self, most=1.0):
        self.master.grad = self.grads.float()
        nn.utils.clip_grad_norm_([self.master], most)
        self.adam.step()
        self.adam.zero_grad()
        self.weights.copy_(self.master.detach())
        self.grads.zero_()


@job()
def flat_master_weights_roberta():
    config = T.RobertaConfig(
        vocab_size=pick(30000, 100),
        hidden_size=pick(768, 24),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=12,
        intermediate_size=pick(3072, 48),
    )
    model = built(T.RobertaForMaskedLM, config, torch.bfloat16).train()
    optimizer = FlatMaster(model, 1e-4)
    for _ in range(4):
        ids = torch.randint(5, config.vocab_size, (pick(32, 2), pick(256, 8)), device=device)
        labels = ids.masked_fill(torch.rand(ids.shape, device=device) > 0.15, -100)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        optimizer.step()
        yield


@job()
def prodigy_estimates_its_rate():
    """A rate found from distances; numerator and denominator are read on the host in each step."""
    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights_backbone=None, num_classes=21
    )
    params = list(model.to(device).train().parameters())
    start = [p.detach().clone() for p in params]
    m, v, s = ([torch.zeros_like(p) for p in params] for _ in range(3))
    d, numerator = 1e-6, 0.0
    res = pick(384, 64)
    for _ in range(4):
        x = torch.randn(pick(12, 2), 3, res, res, device=device)
        y = torch.randint(0, 21, (len(x), res, res), device=device)
        F.cross_entropy(model(x)["out"], y, ignore_index=0).backward()
        with torch.no_grad():
            denominator = 0.0
            for p, p0, a, b, c in zip(params, start, m, v, s):
                g = p.grad
                numerator += d * torch.dot(g.flatten(), (p0 - p).flatten()).item()
                a.mul_(0.9).add_(g, alpha=0.1 * d)
                b.mul_(0.999).addcmul_(g, g, value=0.001 * d * d)
                c.mul_(0.9995).add_(g, alpha=d * d)
                denominator += c.abs().sum().item()
            if denominator > 0:
                d = max(d, numerator / denominator)
            for p, a, b in zip(params, m, v):
                p.addcdiv_(a, b.sqrt().add_(d * 1e-8), value=-d)
                p.grad = None
        yield d


@job()
def mezo_zeroth_order_language_model():
    """Two forward passes with perturbed weights; the noise is drawn again from its seed, never kept."""
    config = T.OPTConfig(
        vocab_size=pick(50272, 100),
        hidden_size=pick(2048, 48),
        word_embed_proj_dim=pick(2048, 48),
        ffn_dim=pick(8192, 64),
        num_hidden_layers=pick(24, 2),
        num_attention_heads=pick(32, 4),
        max_position_embeddings=1024,
        use_cache=False,
    )
    model = built(T.OPTForCausalLM, config, torch.float16).eval()

    def perturb(seed, scale):
        torch.manual_seed(seed)
        for p in model.parameters():
            z = torch.normal(mean=0, std=1, size=p.size(), device=p.device, dtype=p.dtype)
            p.data = p.data + scale * z

    @torch.inference_mode()
    def evaluate(ids):
        return model(input_ids=ids, labels=ids).loss.float()

    for step in range(4):
        ids = torch.randint(4, config.vocab_size, (pick(16, 2), pick(256, 8)), device=device)
        perturb(step, 1e-3)
        up = evaluate(ids)
        perturb(step, -2e-3)
        down = evaluate(ids)
        perturb(step, 1e-3)
        slope = ((up - down) / 2e-3).item()
        perturb(step, -1e-6 * slope)
        yield up.item()


@job()
def hessian_free_gauss_newton():
    """Conjugate gradients on Gauss-Newton products by two vector-Jacobian products; stops by a value."""
    widths = pick((784, 1000, 500, 250, 30), (20, 16, 4))
    widths = widths + widths[-2::-1]
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), nn.Sigmoid()]
    model = nn.Sequential(*layers[:-1]).to(device)
    params = list(model.parameters())
    flat = lambda tensors: torch.cat([t.flatten() for t in tensors])
    x = torch.rand(pick(40000, 16), widths[0], device=device)
    direction = torch.zeros(sum(p.numel() for p in params), device=device)
    damping = 1.0
    for _ in range(3):
        out = model(x)
        loss = F.binary_cross_entropy_with_logits(out, x)
        gradient = flat(torch.autograd.grad(loss, params, retain_graph=True))
        probe = torch.zeros_like(out, requires_grad=True)
        back = flat(torch.autograd.grad(out, params, probe, create_graph=True))
        curve = (out.sigmoid() * (1 - out.sigmoid()) / out.numel()).detach()

        def product(v):
            (jv,) = torch.autograd.grad(back, probe, v, retain_graph=True)
            return flat(torch.autograd.grad(out, params, curve * jv, retain_graph=True)) + (
                damping * v
            )

        direction = direction * 0.95
        r = -gradient - product(direction)
        p, rr = r.clone(), r.dot(r)
        for _ in range(8):
            q = product(p)
            alpha = rr / p.dot(q)
            direction = direction + alpha * p
            r = r - alpha * q
            new = r.dot(r)
            if new.item() < 1e-14:
                break
            p, rr = r + new / rr * p, new
        out = back = probe = curve = None
        with torch.no_grad():
            before = nn.utils.parameters_to_vector(params)
            nn.utils.vector_to_parameters(before + direction, params)
            after = F.binary_cross_entropy_with_logits(model(x), x)
            damping *= 1.5 if after.item() > loss.item() else 0.66
        yield after.item()


if __name__ == "__main__":
    main()
