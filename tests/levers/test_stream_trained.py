"""Trained weights in host memory: the results of the plain job on a virtual GPU that computes, and what is refused."""

import json

import pytest

MODEL = """
import json, io, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.scale * self.down(torch.tanh(self.up(y)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 256), nn.Linear(256, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CHECKPOINT else block(x)
        return self.head(x)

CHECKPOINT = False
model = Net().cuda()
before = [p.detach().cpu().clone() for p in model.parameters()]
found = []
def batch():
    return torch.randn(16, 4, 32, device="cuda"), torch.randint(0, 10, (16, 4), device="cuda")
def loss_of(x, y):
    return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
"""
END = """
print(json.dumps([found, [(p.detach().cpu() - q).double().norm().item() for p, q in zip(model.parameters(), before)]]))
print(json.dumps([p.device.type for p in model.blocks[1].parameters() if p.nbytes >= 256 << 10]))
"""
LOOP = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    for part in range(2):
        with torch.autocast("cuda", torch.bfloat16, enabled=AUTOCAST):
            loss = loss_of(*batch())
        loss.backward()
    found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        found.append(loss_of(*batch()).item())
"""
MODULES = [f"Net.blocks.{index}" for index in range(3)]


def with_weights_on_the_host(oomph, tmp_path, code, others=("optimizer_on_cpu",), more=""):
    """What the plain script prints, and what it prints with its weights in host memory."""
    path = tmp_path / "plan.toml"
    plan = ['format = "oomph.plan/1"', "[[lever]]", 'name = "gradients_on_cpu"']
    for name in others:
        plan += ["[[lever]]", f'name = "{name}"']
    plan += ["[[lever]]", 'name = "stream_trained"', f"modules = {json.dumps(MODULES)}", more]
    path.write_text("\n".join(plan))
    plain = oomph(MODEL + code + END, "--compute", "1GiB")
    assert plain.status == 0, plain.err
    changed = oomph(MODEL + code + END, "--compute", "1GiB", "--plan", str(path))
    assert changed.status == 0, changed.err
    one, other = (json.loads(run.out.splitlines()[0]) for run in (plain, changed))
    assert json.loads(changed.out.splitlines()[1]) == ["cpu"] * 4
    return one, other


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("others", [(), ("optimizer_on_cpu",)], ids=["", "state"])
def test_training_gives_the_same(oomph, tmp_path, autocast, others):
    """Accumulated, clipped and evaluated in between."""
    code = f"AUTOCAST = {autocast}\n" + LOOP
    plain, changed = with_weights_on_the_host(oomph, tmp_path, code, others)
    for one, other in zip(changed, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["lever", "script"])
def test_blocks_that_are_checkpointed(oomph, tmp_path, own):
    code = f"AUTOCAST, CHECKPOINT = False, {own}\n" + LOOP
    lever = f'[[lever]]\nname = "checkpoint"\nmodules = {json.dumps(MODULES[:2])}'
    more = "" if own else lever
    plain, changed = with_weights_on_the_host(oomph, tmp_path, code, more=more)
    for one, other in zip(changed, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_gradients_of_gradients(oomph, tmp_path):
    code = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    x, y = batch()
    x.requires_grad_()
    loss = loss_of(x, y)
    slope, = torch.autograd.grad(loss, x, create_graph=True)
    (loss + 100 * slope.square().sum()).backward()
    found.append(slope.norm().item())
    optimizer.step()
    optimizer.zero_grad()
"""
    # The kernels of attention have no second derivative.
    code = (
        "torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.enable_mem_efficient_sdp(False)\n"
        + code
    )
    plain, changed = with_weights_on_the_host(oomph, tmp_path, code)
    for one, other in zip(changed, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_what_is_saved_and_loaded(oomph, tmp_path):
    """The host has the weights after each step; those that are loaded are brought again."""
    code = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def train():
    loss_of(*batch()).backward()
    optimizer.step()
    optimizer.zero_grad()
train()
torch.save([model.state_dict(), optimizer.state_dict()], file := io.BytesIO())
train()
file.seek(0)
weights, state = torch.load(file)
model.load_state_dict(weights)
optimizer.load_state_dict(state)
train()
found.append(loss_of(*batch()).item())
"""
    plain, changed = with_weights_on_the_host(oomph, tmp_path, code)
    for one, other in zip(changed, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_it_needs_gradients_on_the_host(oomph, tmp_path):
    path = tmp_path / "plan.toml"
    modules = json.dumps(MODULES)
    path.write_text(
        f'format = "oomph.plan/1"\n[[lever]]\nname = "stream_trained"\nmodules = {modules}\n'
    )
    found = oomph(MODEL + "AUTOCAST = False\n" + LOOP, "--plan", str(path))
    assert found.status == 2 and "its gradients must wait in host memory" in found.err
