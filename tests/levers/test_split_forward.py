"""`split_forward`: gradients as without it whatever the model, the loss and the loop, and refusals by name."""

import pytest

from tests.support.command import fit
from tests.support.jobs import TRAIN
from tests.support.levers import distance, run, same

PARTS = 3
SETUP = """
    import dataclasses
    torch.manual_seed(1)
    B = 7
"""
END = """
    out = dict(grads=[p.grad for p in parameters], outputs=outputs)
"""

MODELS = {
    "perceptron": """
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    x, y = torch.randn(B, 8), torch.randint(0, 5, (B,))
    outputs = model(x)
    F.cross_entropy(outputs, y).backward()
    parameters = model.parameters()
""",
    "convolutions with GroupNorm, channels last": """
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(B, 3, 8, 8).to(memory_format=torch.channels_last)
    outputs = model(x)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    (outputs.flatten(1).softmax(1)[:, 3]).log().mean().backward()
    parameters = model.parameters()
""",
    "patches with attention": """
    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, 16, 4, 4)
            self.cls = nn.Parameter(torch.randn(1, 1, 16))
            self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2)
            self.head = nn.Linear(16, 5)
        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
            return self.head(self.blocks(x)[:, 0])
    model = ViT()
    outputs = model(torch.randn(B, 3, 16, 16))
    F.cross_entropy(outputs, torch.arange(B) % 5).backward()
    parameters = model.parameters()
""",
    "LSTM with its states": """
    model = nn.LSTM(6, 10, num_layers=2, batch_first=True)
    outputs = model(torch.randn(B, 9, 6))
    (outputs[0][:, -1].pow(2).mean() + outputs[1][1].sum(0).pow(2).mean()).backward()
    parameters = model.parameters()
""",
    "encoder and decoder with a causal mask": """
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 16)
            self.body = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)
            self.bias = nn.Parameter(torch.zeros(20))
        def forward(self, source, target, mask):
            x = self.body(self.embed(source), self.embed(target), tgt_mask=mask)
            return x @ self.embed.weight.T + self.bias
    model = Seq2Seq()
    source, target = torch.randint(0, 20, (B, 6)), torch.randint(0, 20, (B, 5))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    outputs = model(source, target, mask=mask)
    F.cross_entropy(outputs.flatten(0, 1), target.flatten(), ignore_index=3).backward()
    parameters = model.parameters()
""",
    "U-Net with skips": """
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(2, 4, 3, 2, 1)
            self.mid = nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.SiLU(), nn.Conv2d(4, 8, 3, 2, 1))
            self.up = nn.ConvTranspose2d(8, 4, 4, 2, 1)
            self.out = nn.ConvTranspose2d(8, 1, 4, 2, 1)
        def forward(self, x):
            a = self.down(x)
            return self.out(torch.cat([self.up(self.mid(a)), a], 1))
    model = UNet()
    x = torch.randn(B, 2, 16, 16)
    outputs = model(x)
    F.binary_cross_entropy_with_logits(outputs, (x[:, :1] > 0).float()).backward()
    parameters = model.parameters()
""",
    "a dictionary and lists in and out": """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        def forward(self, batch, names=None):
            assert names is None or len(names) == len(batch["x"])
            hidden = self.a(batch["x"]) + batch["nested"][0]
            return {"logits": self.b(hidden), "features": [hidden, hidden.argmax(1)], "kind": "net"}
    model = Net()
    batch = {"x": torch.randn(B, 4), "nested": (torch.randn(B, 1),)}
    outputs = model(batch, names=[str(i) for i in range(B)])
    assert outputs["kind"] == "net" and not outputs["features"][1].requires_grad
    (outputs["logits"].logsumexp(1).mean() + outputs["features"][0].pow(2).sum()).backward()
    outputs = [outputs["logits"], *outputs["features"]]
    parameters = model.parameters()
""",
    "a data class": """
    @dataclasses.dataclass
    class Output:
        mean: torch.Tensor
        scale: torch.Tensor
        hidden: tuple = ()
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        def forward(self, x):
            h = self.a(x).tanh()
            return Output(self.b(h), F.softplus(h), (h,))
    model = Net()
    found = model(torch.randn(B, 4))
    assert type(found) is Output
    (found.mean.pow(2).mean() / found.scale.mean() + found.hidden[0].std(0).sum()).backward()
    outputs = [found.mean, found.scale]
    parameters = model.parameters()
""",
    "two towers, all samples compared": """
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = nn.Linear(8, 6), nn.Sequential(nn.Linear(5, 6), nn.Tanh())
            self.scale = nn.Parameter(torch.tensor(1.3))
        def forward(self, image, text):
            return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1), self.scale.exp()
    model = Towers()
    a, b, scale = model(torch.randn(B, 8), torch.randn(B, 5))
    logits = scale * a @ b.T
    (F.cross_entropy(logits, torch.arange(B)) + F.cross_entropy(logits.T, torch.arange(B))).backward()
    outputs = [a, b, scale]
    parameters = model.parameters()
""",
    "rays of points": """
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        def forward(self, points):
            points = torch.cat([(points * 2**k).sin() for k in range(6)], -1)
            return self.net(points)
    model = Field()
    points = torch.rand(64 * 16, 3)
    outputs = model(points)
    rgb, density = outputs.view(64, 16, 4).split([3, 1], -1)
    weights = (F.softplus(density).cumsum(1) * -0.1).exp()
    ((weights * rgb.sigmoid()).sum(1) - 0.5).pow(2).mean().backward()
    parameters = model.parameters()
""",
    "a triplet loss, three calls of one model": """
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    anchor, positive, negative = (model(torch.randn(B, 8)) for _ in range(3))
    F.triplet_margin_loss(anchor, positive, negative).backward()
    outputs = [anchor, positive, negative]
    parameters = model.parameters()
""",
    "weights of another module, and hooks": """
    embed = nn.Embedding(11, 6)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)
        def forward(self, tokens):
            return F.linear(self.a(F.embedding(tokens, embed.weight)), embed.weight)
    model = Net()
    seen = []
    model.a.weight.register_hook(lambda gradient: seen.append(1) or gradient.clamp(-1e-3, 1e-3))
    tokens = torch.randint(0, 11, (B, 4))
    outputs = model(tokens)
    F.cross_entropy(outputs.flatten(0, 1), tokens.flatten()).backward()
    assert seen == [1]
    parameters = [*model.parameters(), embed.weight]
""",
    "gradients of the inputs, of those that hold for all samples too": """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        def forward(self, x, style):
            return self.b(self.a(x) * style)
    model = Net()
    x, style = torch.randn(B, 4, requires_grad=True), torch.randn(1, 6, requires_grad=True)
    outputs = model(x * 2, style)
    outputs.pow(2).mean().backward()
    parameters = [*model.parameters(), x, style]
""",
    "time first, with the state of one layer": """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(9, 4), nn.GRU(4, 8), nn.Linear(8, 9)
        def forward(self, x, state):
            out, state = self.rnn(self.embed(x), state)
            return self.head(out), state
    model, x = Net(), torch.randint(0, 9, (5, B))
    for _ in range(2):
        outputs, _ = model(x, torch.zeros(1, B, 8))
        F.cross_entropy(outputs.flatten(0, 1), x.flatten()).backward()
    parameters = model.parameters()
""",
    "time first, with states that are carried on": """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(9, 4), nn.LSTM(4, 8, 2), nn.Linear(8, 9)
        def forward(self, x, state):
            out, state = self.rnn(self.embed(x), state)
            return self.head(out), state
    model = Net()
    state = tuple(torch.randn(2, B, 8, requires_grad=True) for _ in "hc")
    parameters = [*model.parameters(), *state]
    for _ in range(2):
        x = torch.randint(0, 9, (5, B))
        found, state = model(x, state)
    outputs = [found, *state]
    (F.cross_entropy(found.flatten(0, 1), x.flatten()) + state[1].mean()).backward()
""",
    "spectral norm and accumulation over two calls": """
    norm = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(norm(nn.Linear(8, 16)), nn.ReLU(), norm(nn.Linear(16, 1)))
    for _ in range(2):
        outputs = model(torch.randn(B, 8))
        outputs.relu().mean().backward()
    parameters = [*model.parameters()]
    outputs = [outputs, *model.buffers()]
""",
}


def gradients(tmp_path, code, *others, setup=SETUP, end=END, limit=1e-6, parts=PARTS, prelude=None):
    """What `code` computes split is what it computes whole; returns the split run."""
    plain = run(tmp_path, setup + code + end, *others, prelude=prelude)
    split = run(
        tmp_path, setup + code + end, ("split_forward", {"parts": parts}), *others, prelude=prelude
    )
    assert split.refusal is None, split.refusal
    assert split.levers["split_forward"]["applied"] > 0, split.levers
    for name, expected in plain.out.items():
        assert distance(split.out[name], expected) <= limit, name
    return split


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_whole_batch(tmp_path, name):
    gradients(tmp_path, MODELS[name])


HUGGING_FACE = {
    "GPT-2 with labels": """
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    tokens = torch.randint(0, 50, (B, 12))
    labels = tokens.masked_fill(torch.rand(B, 12) < 0.4, -100)
    labels[:2] = -100  # a part without any
    found = model(input_ids=tokens, labels=labels)
    found.loss.backward()
    outputs = [found.loss, found.logits]
    parameters = model.parameters()
""",
    "BERT with a head and a loss outside": """
    from transformers import BertConfig, BertForSequenceClassification
    model = BertForSequenceClassification(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    tokens, mask = torch.randint(0, 50, (B, 12)), torch.ones(B, 12, dtype=torch.long)
    mask[2, 7:] = 0
    found = model(tokens, attention_mask=mask)
    assert type(found).__name__ == "SequenceClassifierOutput"
    F.cross_entropy(found.logits, torch.arange(B) % 2).backward()
    outputs = found.logits
    parameters = model.parameters()
""",
    "Llama with labels and a sum over items": """
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50,
                                         intermediate_size=64))
    tokens = torch.randint(0, 50, (B, 12))
    found = model(input_ids=tokens, labels=tokens, num_items_in_batch=torch.tensor(77))
    found.loss.backward()
    outputs = [found.loss, found.logits]
    parameters = model.parameters()
""",
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_models_of_hugging_face(tmp_path, name):
    gradients(tmp_path, HUGGING_FACE[name], prelude="import transformers")


LOOPS = {
    "policies": """
    from torch.distributions import Categorical, Independent, Normal
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.pick, self.mean = nn.Linear(8, 16), nn.Linear(16, 5), nn.Linear(16, 3)
            self.deviation = nn.Parameter(torch.zeros(3))
        def forward(self, x):
            h = torch.tanh(self.body(x))
            return Categorical(logits=self.pick(h)), Independent(Normal(self.mean(h), self.deviation.exp().expand(len(x), 3)), 1)
    model = Agent()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        pick, move = model(torch.randn(B, 8))
        optimizer.zero_grad()
        (pick.log_prob(torch.arange(B) % 5).mean() + 0.1 * pick.entropy().mean() + move.log_prob(torch.randn(B, 3)).mean()).backward()
        optimizer.step()
    models = [model]
""",
    "GAN": """
    G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    g, d = (torch.optim.SGD(m.parameters(), 0.1) for m in (G, D))
    for _ in range(3):
        real, fake = torch.randn(B, 8), G(torch.randn(B, 4))
        d.zero_grad()
        loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
        loss.backward()
        d.step()
        g.zero_grad()
        F.softplus(-D(fake)).mean().backward()
        g.step()
    models = [G, D]
""",
    "a teacher and a target network without gradients": """
    def new_model():
        return nn.Sequential(nn.Linear(4, 8), Sizes(), nn.Tanh(), nn.Linear(8, 3))
    class Sizes(nn.Module):
        def forward(self, x):
            seen.append((len(x), torch.is_grad_enabled()))
            return x
    seen = []
    model, teacher, target = new_model(), new_model().eval().requires_grad_(False), new_model()
    normalized = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(B, 4)
        with torch.no_grad():
            wanted, before = teacher(x), model(x).argmax(1)
            again = target(x).gather(1, before[:, None])
            wanted = wanted + normalized(x)
        with torch.inference_mode():
            one = model(x[:2])
        assert again.shape == (B, 1) and one.is_inference() and not wanted.requires_grad
        loss = F.mse_loss(model(x), wanted) + again.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if max(size for size, _ in seen) < B:
        assert (2, False) in seen and max(size for size, _ in seen[-8:]) == 3, seen
    models = [model]
""",
    "LBFGS": """
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.randn(B, 4).double(), torch.randn(B, 1).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    for _ in range(2):
        optimizer.step(closure)
    models = [model]
""",
    "accumulation, clipping, a scaler, several backward passes": """
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for _ in range(2):
        for _ in range(2):
            found = model(torch.randn(B, 4))
            scaler.scale(found[:, 0].pow(2).mean()).backward(retain_graph=True)
            scaler.scale(found[:, 1].std()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    models = [model]
""",
    "gradients by autograd.grad": """
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    for _ in range(2):
        x = torch.randn(B, 4, requires_grad=True)
        found = torch.autograd.grad(model(x).pow(2).mean(), [x, *model.parameters()])
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), found[1:]):
                p -= 0.1 * gradient
    models = [model]
""",
    "evaluation between steps, a last batch of one": """
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for size in (7, 5, 1):
        model(torch.randn(size, 4)).pow(2).mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(3, 4))
        model.train()
    models = [model]
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(tmp_path, name):
    end = "\n    out = dict(weights=[p.detach() for m in models for p in m.parameters()])\n"
    gradients(tmp_path, LOOPS[name], end=end)


FRAMEWORKS = {
    "Trainer": """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows = []
    for i in range(22):
        ids = torch.randint(0, 50, (12,)); labels = ids.clone(); labels[:i % 9] = -100
        rows.append({"input_ids": ids, "labels": labels})
    trainer = Trainer(model=model, train_dataset=rows, args=TrainingArguments(
        DIRECTORY, per_device_train_batch_size=8, num_train_epochs=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_steps=1, learning_rate=1e-2, seed=3, optim="sgd", gradient_accumulation_steps=2))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
""",
    "Lightning": """
    import lightning
    from torch.utils.data import DataLoader, TensorDataset
    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
        def forward(self, x):
            return self.net(x)
        def training_step(self, batch, index):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            losses.append(loss.detach())
            return loss
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    model, losses = Task(), []
    loader = DataLoader(TensorDataset(torch.randn(23, 8), torch.randint(0, 5, (23,))), batch_size=10)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.1)
    trainer.fit(model, loader)
""",
    "DistributedDataParallel": """
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    dist.init_process_group("gloo", init_method="file://" + DIRECTORY + "/meeting" + str(os.getpid()), rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5)))
    exchanged, losses = [], []
    def count(state, bucket):
        exchanged.append(bucket.index())
        return default_hooks.allreduce_hook(None, bucket)
    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(B, 8)), torch.randint(0, 5, (B,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert exchanged == [0, 0, 0], exchanged
    dist.destroy_process_group()
""",
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks(tmp_path, name):
    code = FRAMEWORKS[name].replace("DIRECTORY", repr(str(tmp_path)))
    end = "\n    out = dict(weights=[p.detach() for p in model.parameters()], losses=losses)\n"
    # Trainer logs losses to four digits.
    gradients(tmp_path, "    import os\n" + code, end=end)


def test_autocast_in_both_passes(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    kinds = []
    model[1].register_forward_hook(lambda m, i, o: kinds.append(o.dtype))
    x, y = torch.randn(B, 8), torch.randint(0, 5, (B,))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
        loss = F.cross_entropy(outputs, y)
    loss.backward()
    assert set(kinds) == {torch.bfloat16}
    parameters = model.parameters()
"""
    split = gradients(tmp_path, code, limit=5e-3)
    assert split.levers["split_forward"]["applied"] == 1


def test_what_the_model_draws_by_python_does_not_couple_samples(tmp_path):
    """Teacher forcing, say: a few samples together were compared with the same apart, after other draws."""
    code = """
    import random
    random.seed(3)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
        def forward(self, x):
            for step in range(6):
                x = self.linear(x) if random.random() < 0.5 else -x
            return x
    model = Net()
    out = []
    for step in range(3):
        model(torch.randn(6, 8)).sum().backward()
"""
    report = run(tmp_path, code, ("split_forward", {"parts": 3}))
    assert report.refusal is None, report.refusal
    assert report.levers["split_forward"]["applied"] == 3


@pytest.mark.parametrize(
    "inside", [(), ("checkpoint", {"modules": ["Net.blocks.0", "Net.blocks.1"]})]
)
def test_both_passes_draw_the_same_numbers(tmp_path, inside):
    code = """
    import random
    masks = []
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)
        def forward(self, x):
            mask = self.drop(torch.ones_like(x)) * random.random()
            masks.append(mask.detach())
            return F.dropout(F.relu(self.linear(x)), 0.3) * mask
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x
    model = Net()
    model(torch.randn(2, 8)).sum().backward()  # looks at the model first
    model.zero_grad()
    masks.clear()
    outputs = model(torch.randn(6, 8))
    after, between = torch.get_rng_state(), list(masks)
    masks.clear()
    outputs.sum().backward()
    out = between, masks, torch.equal(after, torch.get_rng_state()), [p.grad for p in model.parameters()]
"""
    levers = [("split_forward", {"parts": 3}), *([inside] if inside else [])]
    forward, again, untouched, grads = run(tmp_path, code, *levers).out
    assert len(forward) == 6 and untouched
    # Of each part but the last, all blocks; checkpointing computes them a third time.
    backward = [mask for mask in again if any(same(mask, one) for one in forward)]
    assert len(backward) == len(again) and len(again) >= 4
    assert all(any(same(one, mask) for mask in again) for one in forward[:4])
    assert all(grad is not None for grad in grads)


REFUSALS = {
    "batch normalization": (
        "model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)); model(torch.randn(B, 8)).sum().backward()",
        "batch normalization (1)",
    ),
    "samples compared inside": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            a = self.a(x)
            return a @ a.T
    Net()(torch.randn(B, 8)).sum().backward()""",
        "compares the samples of a batch with each other",
    ),
    "samples that attend to each other": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            a = self.a(x)
            return a - a.mean(0)
    Net()(torch.randn(B, 8)).pow(2).sum().backward()""",
        "depends on the other samples",
    ),
    "running statistics": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(8))
        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.1)
            return self.a(x - self.mean)
    Net()(torch.randn(B, 8)).sum().backward()""",
        "its buffer Net.mean follows the samples",
    ),
    "a loss of no sum": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            return self.a(x).pow(2).mean().sqrt()
    Net()(torch.randn(B, 8)).backward()""",
        "Sqrt",
    ),
    "losses that count different things": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x, y):
            a = self.a(x)
            return F.cross_entropy(a, y, ignore_index=0) + a.pow(2).mean()
    Net()(torch.randn(B, 8), torch.arange(B) % 4).backward()""",
        "count different things",
    ),
    "balance of experts": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.a = nn.Linear(8, 4), nn.Linear(8, 2)
        def forward(self, x):
            p = self.gate(x).softmax(-1)
            return self.a(x), (F.one_hot(p.argmax(-1), 4).float().mean(0) * p.mean(0)).sum()
    found, balance = Net()(torch.randn(B, 8))
    (found.sum() + balance).backward()""",
        "a mean over the samples",
    ),
    "a loss with a statistic of the batch": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            a = self.a(x)
            return a, (a - a.detach().mean()).pow(2).mean()
    Net()(torch.randn(B, 8))[1].backward()""",
        "is no sum or mean over samples",
    ),
    "a statistic": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            a = self.a(x)
            return a, a.detach().mean()
    Net()(torch.randn(B, 8))[0].sum().backward()""",
        "no dimension of samples",
    ),
    "a graph": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x, edges):
            return self.a(torch.zeros_like(x).index_add(0, edges[0], x[edges[1]]))
    Net()(torch.randn(B, 8), torch.randint(0, B, (2, 20))).sum().backward()""",
        "differ in their first dimension (7, and 2 of argument 2)",
    ),
    "tokens first, and all in one dimension": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)
        def forward(self, x, state):
            out = self.mix(self.embed(x).mean(0) + state)
            return self.head(self.embed(x) + out.mean(0)).view(-1, 9), out
    Net()(torch.randint(0, 9, (5, B)), torch.zeros(2, B, 8))[0].sum().backward()""",
        "joins them with the first",
    ),
    "time first": (
        "nn.LSTM(8, 4)(torch.randn(5, B, 8))[0].sum().backward()",
        "batch_first=False",
    ),
    "gradients of gradients": (
        """
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(B, 8, requires_grad=True)
    force, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    force.pow(2).sum().backward()""",
        "gradients of gradients",
    ),
    "transforms of functions": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        def forward(self, x):
            return self.body(x)
    x = torch.randn(B, 8)
    _, tangent = torch.func.jvp(Net(), (x,), (torch.ones_like(x),))
    tangent.pow(2).sum().backward()""",
        "within a transform of torch.func",
    ),
    "samples drawn from the batch": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            a = self.a(x)
            return (a - a[torch.randint(len(x), (len(x), 3))].mean(1)).pow(2).sum(1)
    Net()(torch.randn(B, 8)).sum().backward()""",
        "picks activations of other samples",
    ),
    "an argument that changes": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            return self.a(x.mul_(2))
    Net()(torch.randn(B, 8)).sum().backward()""",
        "changes an argument in place",
    ),
    "a value from outside": (
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 4)
        def forward(self, x):
            return self.a(x) * self.scale
    model, weight = Net(), nn.Parameter(torch.ones(4))
    model.scale = weight.exp()
    model(torch.randn(B, 8)).sum().backward()""",
        "none of its arguments",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_name(tmp_path, name):
    code, why = REFUSALS[name]
    stopped = run(tmp_path, SETUP + "    " + code.strip() + "\n", ("split_forward", {"parts": 2}))
    assert stopped.refusal is not None, stopped.levers
    assert "split_forward" in stopped.refusal and why in stopped.refusal


def test_a_model_beside_others_may_stay_whole(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    class Margin(nn.Module):  # as losses with weights of their own
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.inner = nn.Identity()
        def forward(self, x, y):
            return F.cross_entropy(self.scale * x, y).exp()
    criterion = Margin()
    outputs = model(torch.randn(B, 8))
    criterion(outputs, torch.randint(0, 5, (B,))).backward()
    parameters = [*model.parameters(), *criterion.parameters()]
"""
    split = gradients(tmp_path, code)
    assert "Margin is left whole" in split.levers["split_forward"]["note"]


INSIDE = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        def forward(self, x):
            return x + self.body(x)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Block()
            self.blocks = nn.ModuleList([Block(), Block()])
        def forward(self, x):
            a = self.body(x)
            rows = self.blocks[0](a.repeat_interleave(3, 0)).view(len(x), 3, 8).mean(1)
            a = a + rows + self.blocks[1](a)
            return OUT
    model = Net()
    outputs = model(torch.randn(B, 8))
    outputs.sum().backward()
    parameters = model.parameters()
"""


@pytest.mark.parametrize(
    "out",
    ["F.cross_entropy(a, torch.arange(len(a)) % 8, ignore_index=0) + a.square().mean()", "a @ a.T"],
    ids=["loss", "comparison"],
)
def test_models_inside_of_one_that_cannot_be_split(tmp_path, out):
    """Those that get its samples; not one that gets three rows of each."""
    split = gradients(tmp_path, INSIDE.replace("OUT", out))
    assert split.levers["split_forward"]["applied"] == 2
    assert "Net is left whole" in split.levers["split_forward"]["note"]


def test_a_recurrent_layer_inside_of_a_model_that_joins_samples_and_times(tmp_path):
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(9, 4), nn.GRU(4, 8, 2), nn.Linear(8, 9)
        def forward(self, x, state):
            out, state = self.rnn(self.embed(x), state)
            return self.head(out).view(-1, 9), state
    model = Net()
    outputs, _ = model(torch.randint(0, 9, (5, B)), torch.zeros(2, B, 8))
    outputs.square().mean().backward()
    parameters = model.parameters()
"""
    split = gradients(tmp_path, code)
    assert split.levers["split_forward"]["applied"] == 1


def test_a_model_that_cannot_be_split_may_be_called_first(tmp_path):
    code = """
    maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2, True), nn.Linear(16, 1))
    outputs = critic(maker(torch.randn(B, 4)))
    (outputs - critic(torch.randn(B, 8))).square().mean().backward()
    parameters = [*maker.parameters(), *critic.parameters()]
"""
    split = gradients(tmp_path, code)
    assert split.levers["split_forward"]["applied"] == 2
    assert "Sequential is left whole: batch normalization" in split.levers["split_forward"]["note"]


def test_a_teacher_runs_in_parts_beside_a_student_that_cannot(tmp_path):
    code = """
    teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    student = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    x = torch.randn(B, 8)
    with torch.no_grad():
        outputs = teacher(x)
    (student(x) - outputs).square().mean().backward()
    parameters = list(student.parameters())
"""
    split = gradients(tmp_path, code)
    assert split.levers["split_forward"]["applied"] == 1


def test_parameters_that_change_before_the_backward_pass(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    loss = model(torch.randn(4, 8)).sum()
    with torch.no_grad():
        model[0].weight.mul_(2)
    try:
        loss.backward()
    except RuntimeError as error:
        out = str(error)
"""
    assert "were changed between" in run(tmp_path, code, ("split_forward", {"parts": 2})).out


def test_the_gradient_is_not_copied(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    from oomph.levers import split_forward
    made = []
    take = split_forward.Totals.take
    def taken(totals):
        sums = take(totals)
        made.extend(gradient.data_ptr() for gradient in sums.values())
        return sums
    split_forward.Totals.take = taken
    model(torch.randn(4, 8)).sum().backward()
    out = sorted(p.grad.data_ptr() for p in model.parameters()) == sorted(made)
"""
    assert run(tmp_path, code, ("split_forward", {"parts": 2})).out


LOOKED_AT = """
    import weakref
    @torch.enable_grad()
    def slope(layer, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(layer(x).exp().sum(), x)[0]
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(300, 300), nn.Linear(300, 2)
        def forward(self, x):
            h = self.a(x).exp()  # which saves its result, and so does the next layer
            first = weakref.ref(h)
            INNER
            h = self.b(h)
            if torch.is_grad_enabled():
                kept[len(x)] = first() is not None
            return h
    model, kept = Net(), {}
    outputs = model(torch.randn(2, 120, 300))
    outputs.pow(2).mean().backward()
    parameters = model.parameters()
"""


def test_two_samples_are_looked_at_without_what_they_save(tmp_path):
    """A batch of two is never held whole: what a look at both keeps would be the batch's peak."""
    code = LOOKED_AT.replace("INNER", "pass") + "    outputs = outputs, kept\n"
    levers = [("split_forward", {"parts": 2})]
    assert run(tmp_path, SETUP + code + END, *levers).out["outputs"][1] == {2: False, 1: True}
    gradients(tmp_path, LOOKED_AT.replace("INNER", "pass"), parts=2)


def test_a_model_that_goes_backward_inside_is_looked_at_with_all(tmp_path):
    inner = "h = h + slope(self.a, x)"
    gradients(tmp_path, LOOKED_AT.replace("INNER", inner), parts=2)


def test_where_memory_is_short_fewer_samples_are_looked_at(tmp_path):
    """A part with its graph is looked at first; without that much memory, two samples without what they save."""
    gradients(
        tmp_path,
        """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.seen = nn.Linear(8, 300), nn.Linear(300, 2), []
        def forward(self, x):
            self.seen.append(len(x))
            if len(x) < 8 and len(self.seen) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.b(self.a(x).exp())
    model = Net()
    outputs = model(torch.randn(8, 8))
    outputs.pow(2).mean().backward()
    assert model.seen[:3] in ([8], [4, 2, 1]), model.seen
    parameters = model.parameters()
""",
        parts=2,
    )


def test_arguments_go_with_a_pass_without_gradients(tmp_path):
    code = """
    import gc, weakref
    gc.disable()
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.randn(6, 8)
    gone = weakref.ref(x)
    with torch.no_grad():
        model(x)
    del x
    model(torch.randn(6, 8)).sum().backward()
    out = gone() is None
"""
    assert run(tmp_path, code, ("split_forward", {"parts": 2})).out


@pytest.mark.parametrize("inside", [True, False])
def test_logits_are_chunked_and_never_whole(tmp_path, inside):
    """With the loss in the model or outside of it, and weights that embed and classify."""
    code = """
    from oomph.levers import chunked_cross_entropy
    chunked_cross_entropy.VOCABULARY, chunked_cross_entropy.MANY = 16, 7 * 9 * 80
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(80, 16), nn.Sequential(nn.Linear(16, 16), nn.GELU())
            self.head = nn.Linear(16, 80, bias=False)
            self.head.weight = self.embed.weight
        def forward(self, tokens, labels=None):
            logits = self.head(self.body(self.embed(tokens)))
            found = {"logits": logits}
            if labels is not None:
                found["loss"] = loss_of(logits, labels)
            return found
    def loss_of(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=3)
    model, losses = Net(), []
    for _ in range(2):
        tokens = torch.randint(0, 80, (7, 9))
        found = model(tokens, labels=tokens) if INSIDE else model(tokens)
        loss = found["loss"] if INSIDE else loss_of(found["logits"], tokens)
        loss.backward()
        losses.append(loss.detach())
    parameters, outputs = model.parameters(), losses
""".replace("INSIDE", str(inside))
    split = gradients(tmp_path, code, ("chunked_cross_entropy", {"chunks": 4}))
    lever = split.levers["chunked_cross_entropy"]
    assert lever["applied"] > 0 and lever["note"] is None, lever


def test_logits_that_the_script_also_looks_at(tmp_path):
    """Each part has them as the first one had, whatever was done with them in the meantime."""
    code = """
    from oomph.levers import chunked_cross_entropy
    chunked_cross_entropy.VOCABULARY, chunked_cross_entropy.MANY = 16, 7 * 9 * 80
    model = nn.Sequential(nn.Embedding(80, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 80))
    outputs = []
    for _ in range(3):
        tokens = torch.randint(0, 80, (7, 9))
        logits = model(tokens)
        (F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) + logits.pow(2).mean()).backward()
        outputs += [logits.detach().sum(), (logits.argmax(-1) == tokens).sum()]
        logits = model(tokens)
        logits.logsumexp(-1).mean().backward()
        outputs.append(logits.detach().sum())
    parameters = model.parameters()
"""
    gradients(tmp_path, code, ("chunked_cross_entropy", {"chunks": 4}))


def test_a_batch_from_a_function_gets_a_plan(tmp_path):
    """No DataLoader, and a loss that compares all samples: `micro_batch` could do nothing."""
    loop = TRAIN[TRAIN.index("    data = DataLoader") :]
    script = TRAIN.replace(
        loop,
        """
    def batch():
        return torch.randn(16384, 1024, device="cuda")
    for _ in range(3):
        found = model(batch())
        loss = (found - found.mean(0)).pow(2).mean().log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    )
    found = fit(tmp_path, script, "--memory", "3GiB", "--allow", "split_forward")
    assert found.status == 0, found.err + found.out
    assert found.levers == ["split_forward"]
    chosen = found.chosen
    assert chosen["verified"] and chosen["same_results"] == "rounding"
    assert 0.9 < chosen["peak"]["used_bytes"] / chosen["predicted"]["used_bytes"] < 1.05
    assert 1.2 < chosen["time_ratio"] < 1.5
    # What cannot be placed by itself is told.
    by_hand = (tmp_path / "oomph-plan.md").read_text()
    assert "outputs.grad.chunk(" in by_hand and "requires_grad_()" in by_hand


def test_the_last_part_keeps_its_graph_and_gradients_are_added_in_place(tmp_path):
    code = """
    import weakref
    calls, alive = [], []
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        def forward(self, x):
            y = torch.tanh(self.a(x))
            calls.append(len(x))
            alive.append(weakref.ref(y))
            return self.b(y)
    model, other = Net(), Net()
    model(torch.randn(2, 8, requires_grad=True)).sum().backward()  # looks at the model first
    other(torch.randn(2, 8, requires_grad=True))
    model.zero_grad()
    def count(function):
        calls.clear()
        alive.clear()
        function()
        return list(calls), sum(ref() is not None for ref in alive)
    x, out = torch.randn(6, 8, requires_grad=True), []
    out.append(count(lambda: model(x).pow(2).mean().backward()))
    first = [p.grad for p in model.parameters()]
    out.append(count(lambda: (model(x).pow(2).mean() / 2).backward()))
    out.append([p.grad is g for p, g in zip(model.parameters(), first)])
    out.append(count(lambda: model(x)))  # its graph is dropped
    pair = []
    out.append(count(lambda: pair.extend((model(x), other(x)))))
    out.append(count(lambda: (pair[0] - pair[1]).pow(2).mean().backward(retain_graph=True)))
    out.append(count(lambda: (pair[0] - pair[1]).sum().backward()))
    out.append(torch.autograd.grad(model(x).sum(), [x, model.a.weight]))
    grads = [p.grad for p in (x, *model.parameters(), *other.parameters())]
    """
    plain = run(tmp_path, code + "\n    out = (out, grads)").out
    *counts, asked = run(tmp_path, code, ("split_forward", {"parts": 3})).out
    changed = run(tmp_path, code + "\n    out = (out, grads)", ("split_forward", {"parts": 3})).out
    assert distance(changed[1], plain[1]) <= 1e-6
    assert distance(list(asked), list(plain[0][-1])) <= 1e-6
    assert counts == [
        ([2] * 5, 0),
        ([2] * 5, 0),
        [True] * 4,
        ([2] * 3, 0),
        ([2] * 6, 1),
        ([2] * 5, 0),
        ([2] * 6, 0),
    ]
