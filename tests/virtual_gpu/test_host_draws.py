"""Random tensors of the host are drawn when somebody reads them, and are what they would have been."""

import json
import os
import subprocess
import sys

import pytest

MODEL = """
import copy, io, json, sys
import torch
from torch import nn

torch.manual_seed(7)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1024, 1001)
        self.b = nn.Embedding(3001, 511, padding_idx=3)
        self.c = nn.Parameter(torch.empty(700, 701))
        nn.init.trunc_normal_(self.c, std=0.02)
        self.d = nn.Parameter(torch.empty(600, 600, dtype=torch.float64).uniform_(-1, 1))
        self.e = nn.Parameter(torch.empty(1000, 300, dtype=torch.bfloat16).normal_(1, 2))
        self.f = nn.Conv2d(256, 256, 3)
        nn.init.kaiming_normal_(self.f.weight)
        nn.init.orthogonal_(self.a.weight) if "orthogonal" in sys.argv else None

def tell(values):
    out = {}
    for name, value in values.items():
        t = torch.as_tensor(value).double()
        out[name] = [float(t.sum()), float(t.abs().max()), float(t.flatten()[12345 % t.numel()])]
    return out

net = Net()
"""
READ = {
    "an operator": "values = {n: p.detach() * 1 for n, p in net.named_parameters()}",
    "numpy": "values = {n: p.detach().float().numpy() if n == 'e' else p.detach().numpy() for n, p in net.named_parameters()}",
    "a copy": "values = {n: p.detach() for n, p in copy.deepcopy(net).named_parameters()}",
    "a file": "file = io.BytesIO(); torch.save(net.state_dict(), file); file.seek(0); values = torch.load(file)",
    "a fork": (
        "import os\nif os.fork() == 0:\n    values = {n: p.detach() for n, p in net.named_parameters()}\n"
        "    open(OUT, 'w').write(json.dumps([tell(values), torch.rand(3).tolist()]))\n    os._exit(0)\nos.wait()"
    ),
    "an overwritten part": (
        "with torch.no_grad():\n    net.a.weight[3:5] = 2.5\n    net.c.mul_(0.5).add_(1)\n    net.f.weight.copy_(torch.ones(256, 256, 3, 3))\n"
        "values = {n: p.detach().clone() for n, p in net.named_parameters()}"
    ),
    "half of it": "net.half(); values = {n: p.detach() for n, p in net.named_parameters()}",
}  # fmt: skip
TELL = """
if "fork" not in sys.argv:
    open(OUT, "w").write(json.dumps([tell(values), torch.rand(3).tolist()]))
x = torch.ones(4, device="cuda") if torch.cuda.is_available() else None
"""


@pytest.mark.parametrize("how", READ)
def test_they_are_what_they_would_have_been(oomph, tmp_path, how):
    code = MODEL + READ[how] + TELL
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    arguments = [*(["fork"] if how == "a fork" else []), "orthogonal"]
    alone = {"OMP_NUM_THREADS": "1"}  # sums of several threads are rounded otherwise
    run = oomph(f"OUT = {str(here)!r}\n{code}", "--keep-files", args=arguments, env=alone)
    assert run.status == 0, run.err
    subprocess.run(
        [sys.executable, "-c", f"OUT = {str(there)!r}\n{code}", *arguments],
        check=True,
        env={**os.environ, **alone},
    )
    assert json.loads(here.read_text()) == json.loads(there.read_text())


def test_weights_that_nobody_reads_are_not_drawn(oomph):
    run = oomph("""
        import resource, torch
        from torch import nn
        net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(40)))
        optimizer = torch.optim.SGD(net.cuda().parameters(), lr=0.1)
        net(torch.ones(8, 4096, device="cuda")).sum().backward()
        optimizer.step()
        assert torch.Tensor.data_ptr is torch._C.TensorBase.data_ptr
        print("resident", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    """)
    assert run.status == 0, run.err
    resident = int(run.out.split("resident ")[1].split()[0])
    assert resident < 2 << 30, resident  # 2.5 GiB of weights alone
