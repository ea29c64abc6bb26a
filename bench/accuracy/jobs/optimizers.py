"""Optimizers with unusual state or order of work, on ordinary models."""

import copy

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import GPT, built


def gpt(depth=None, width=None):
    depth, width = depth or pick(8, 2), width or pick(768, 48)
    return GPT(pick(32000, 100), width, depth, 12, pick(512, 16)).to(device)


def tokens(model, batch):
    vocab, length = model.token.num_embeddings, model.place.num_embeddings
    return torch.randint(0, vocab, (pick(batch, 2), length), device=device)


def vision(name, **more):
    return getattr(torchvision.models, name)(num_classes=100, **more).to(device)


def pictures(batch, res=224):
    res = pick(res, 64)
    x = torch.randn(pick(batch, 2), 3, res, res, device=device)
    return x, torch.randint(0, 100, (len(x),), device=device)


def autocast():
    return torch.autocast(device, dtype=torch.bfloat16)


@job()
def lbfgs_autoencoder():
    """Full batch, a history of twenty gradients, strong Wolfe line search."""
    widths = pick((784, 2048, 1024, 64, 1024, 2048, 784), (20, 8, 20))
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), nn.Tanh()]
    model = nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1, max_iter=8, history_size=20, line_search_fn="strong_wolfe"
    )
    x = torch.rand(pick(30000, 16), widths[0], device=device)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
        yield


class Shampoo(torch.optim.Optimizer):
    """Shampoo for matrices; roots by eigh every second step; large sides are left alone."""

    def __init__(self, params, lr=1e-3, most=2048):
        super().__init__(params, dict(lr=lr, most=most))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                g = p.grad.flatten(1) if p.dim() > 1 else p.grad[:, None]
                if not state:
                    state["step"] = 0
                    state["sides"] = [
                        1e-4 * torch.eye(n, device=p.device) if n <= group["most"] else None
                        for n in g.shape
                    ]
                    state["roots"] = [None, None]
                for i, side in enumerate(state["sides"]):
                    if side is None:
                        continue
                    side.add_(g @ g.T if i == 0 else g.T @ g)
                    if state["step"] % 2 == 0:
                        values, vectors = torch.linalg.eigh(side)
                        state["roots"][i] = (
                            vectors * values.clamp(min=1e-8).pow(-0.25)
                        ) @ vectors.T
                left, right = state["roots"]
                if left is not None:
                    g = left @ g
                if right is not None:
                    g = g @ right
                state["step"] += 1
                p.add_(g.view_as(p), alpha=-group["lr"])


@job()
def shampoo_by_hand():
    model = gpt(depth=pick(2, 1))
    optimizer = Shampoo(model.parameters(), most=pick(2304, 64))
    for _ in range(4):
        ids = tokens(model, 16)
        with autocast():
            loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def muon_newton_schulz_by_hand():
    """Matrices by orthogonalized momentum in bfloat16, the rest by AdamW."""
    model = gpt(depth=pick(12, 2), width=pick(960, 48))
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    rest = torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=3e-4)
    momentum = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def orthogonal(g):
        x = g.bfloat16()
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if tall else x

    for _ in range(4):
        ids = tokens(model, 16)
        with autocast():
            loss = model(ids, ids)
        loss.backward()
        with torch.no_grad():
            for p, m in zip(matrices, momentum):
                m.mul_(0.95).add_(p.grad)
                p.mul_(1 - 0.02 * 0.01).add_(orthogonal(p.grad + 0.95 * m), alpha=-0.02)
        rest.step()
        model.zero_grad(set_to_none=True)
        yield


@job()
def torch_muon_with_adamw():
    """torch.optim.Muon for the matrices of a Llama, fused AdamW for embeddings and norms."""
    width = pick(1024, 64)
    config = T.LlamaConfig(
        vocab_size=pick(32000, 100),
        hidden_size=width,
        intermediate_size=pick(2816, 96),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = built(T.LlamaForCausalLM, config).train()
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "layers" not in n]
    both = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=3e-4, fused=True),
    ]
    for _ in range(4):
        ids = torch.randint(0, config.vocab_size, (pick(8, 2), pick(1024, 16)), device=device)
        with autocast():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        yield


@job()
def swa_with_batchnorm_update():
    """Stochastic weight averaging of a ResNet, then its batch norms anew."""
    model = vision("resnet34")
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step in range(4):
        x, y = pictures(64)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 1:
            average.update_parameters(model)
            schedule.step()
        yield
    torch.optim.swa_utils.update_bn([pictures(64)[0] for _ in range(3)], average)
    yield


@job()
def ema_foreach_with_evaluation():
    """A moving average by foreach operations; the average is evaluated after each epoch."""
    model = vision("convnext_tiny").train()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4, decoupled_weight_decay=True)
    for step in range(4):
        x, y = pictures(32)
        with autocast():
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.001)
            if step % 2:
                x, y = pictures(96)
                (ema(x).argmax(1) == y).float().mean().item()
        yield


@job()
def adafactor_t5_foreach():
    """Factored second moments on T5, with a schedule and padded labels."""
    config = T.T5Config(
        d_model=pick(768, 32),
        d_ff=pick(2048, 64),
        num_layers=pick(8, 2),
        num_heads=pick(12, 2),
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = built(T.T5ForConditionalGeneration, config).train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, foreach=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    for _ in range(4):
        ids = torch.randint(1, 32000, (pick(16, 2), pick(384, 8)), device=device)
        labels = torch.randint(1, 32000, (len(ids), pick(96, 6)), device=device)
        labels[:, labels.shape[1] // 2 :] = -100
        with autocast():
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield


@job()
def rprop_then_asgd():
    """Two optimizers of the old school, one after the other, on a residual perceptron."""
    width = pick(2048, 16)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(10)]).to(device)
    for make in (
        lambda p: torch.optim.Rprop(p, lr=1e-3),
        lambda p: torch.optim.ASGD(p, lr=1e-3, foreach=True),
    ):
        optimizer = make(model.parameters())
        for _ in range(3):
            x = torch.randn(pick(8192, 4), width, device=device)
            h = x
            for layer in model:
                h = h + torch.tanh(layer(h))
            loss = (h - x.roll(1, 1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield


class Lookahead:
    """Slow weights that follow the fast ones every k steps."""

    def __init__(self, inner, k=2, alpha=0.5):
        self.inner, self.k, self.alpha, self.steps = inner, k, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.steps += 1
        if self.steps % self.k == 0:
            for group, slow in zip(self.inner.param_groups, self.slow):
                for p, s in zip(group["params"], slow):
                    s += self.alpha * (p - s)
                    p.copy_(s)


@job()
def lookahead_radam():
    model = vision("efficientnet_b1").train()
    optimizer = Lookahead(torch.optim.RAdam(model.parameters(), lr=1e-3, foreach=True))
    for _ in range(5):
        x, y = pictures(48, 240)
        with autocast():
            loss = F.cross_entropy(model(x), y)
        optimizer.inner.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def sam_two_passes():
    """Sharpness-aware minimization: a climb, a second pass, the way back."""
    model = vision("regnet_y_800mf").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(4):
        x, y = pictures(64)
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            grads = [p.grad for p in model.parameters()]
            scale = 0.05 / (torch.stack([g.norm() for g in grads]).norm() + 1e-12)
            climbs = [g * scale for g in grads]
            for p, climb in zip(model.parameters(), climbs):
                p.add_(climb)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, climb in zip(model.parameters(), climbs):
                p.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
        yield


@job()
def gradual_unfreezing_groups():
    """Parameter groups with rates of their own; layers join the optimizer as training goes on."""
    config = T.BertConfig(
        hidden_size=pick(768, 24),
        num_hidden_layers=pick(12, 3),
        num_attention_heads=12,
        intermediate_size=pick(3072, 48),
        num_labels=5,
        hidden_dropout_prob=0.1,
    )
    model = built(T.BertForSequenceClassification, config).train()
    model.bert.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.classifier.parameters(), lr=1e-3)
    layers = list(model.bert.encoder.layer)
    for step in range(6):
        if step % 2 == 0:
            group = layers[-(step + 2) :] if step == 0 else layers[-(step + 2) : -step]
            group = [p for layer in group for p in layer.requires_grad_(True).parameters()]
            if group:
                optimizer.add_param_group(dict(params=group, lr=2e-5 * 0.9**step))
        ids = torch.randint(5, 30000, (pick(48, 2), pick(256, 8)), device=device)
        labels = torch.randint(0, 5, (len(ids),), device=device)
        with autocast():
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def accumulation_with_scaler_and_clipping():
    """fp16, four small batches a step, gradients unscaled and clipped."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=128.0)
    for _ in range(4):
        for _ in range(4):
            ids = tokens(model, 8)
            with torch.autocast(device, dtype=torch.float16):
                loss = model(ids, ids) / 4
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield


@job()
def optimizer_in_backward():
    """Each parameter has an optimizer of its own, stepped as soon as its gradient is there."""
    model = gpt(depth=pick(12, 2), width=pick(1536, 48)).bfloat16()
    own = {p: torch.optim.AdamW([p], lr=1e-5, foreach=False) for p in model.parameters()}

    def hook(p):
        own[p].step()
        own[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(4):
        ids = tokens(model, 8)
        model(ids, ids).backward()
        yield


@job()
def sparse_adam_embeddings():
    """Sparse gradients of large embeddings with SparseAdam, the dense part with Adagrad."""
    rows, width = pick(2000000, 100), pick(64, 8)
    tables = nn.ModuleList([nn.Embedding(rows, width, sparse=True) for _ in range(3)]).to(device)
    dense = nn.Sequential(nn.Linear(3 * width, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    both = [
        torch.optim.SparseAdam(list(tables.parameters()), lr=1e-3),
        torch.optim.Adagrad(dense.parameters(), lr=1e-2),
    ]
    for _ in range(4):
        ids = torch.randint(0, rows, (pick(65536, 8), 3), device=device)
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(tables)], 1)
        loss = F.binary_cross_entropy_with_logits(dense(x).squeeze(1), (ids[:, 0] % 2).float())
        for optimizer in both:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in both:
            optimizer.step()
        yield


@job()
def low_rank_gradients_svd():
    """Adam on gradients projected to a low rank, the projection anew by SVD every second step."""
    model = gpt(depth=pick(2, 1))
    rank, states = pick(128, 4), {}
    for step in range(4):
        ids = tokens(model, 16)
        with autocast():
            loss = model(ids, ids)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                g, state = p.grad, states.setdefault(p, {})
                low = p.dim() == 2 and min(p.shape) > rank and max(p.shape) < 10000
                if low and step % 2 == 0:
                    state["base"] = torch.linalg.svd(g, full_matrices=False)[2][:rank]
                g = g @ state["base"].T if low else g
                m, v = state.setdefault("m", torch.zeros_like(g)), state.get("v")
                v = state.setdefault("v", torch.zeros_like(g)) if v is None else v
                m.lerp_(g, 0.1)
                v.lerp_(g.square(), 0.01)
                change = m / (v.sqrt() + 1e-8)
                p.add_(change @ state["base"] if low else change, alpha=-1e-4)
        model.zero_grad()
        yield


@job()
def checkpoint_saved_and_resumed():
    """Adadelta; model and optimizer are copied, built anew and loaded, as after a restart."""
    model = gpt()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            saved = copy.deepcopy(dict(model=model.state_dict(), optimizer=optimizer.state_dict()))
            model = gpt()
            model.load_state_dict(saved["model"])
            optimizer = torch.optim.Adadelta(model.parameters(), lr=0.1)
            optimizer.load_state_dict(saved["optimizer"])
        ids = tokens(model, 16)
        with autocast():
            loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


if __name__ == "__main__":
    main()
