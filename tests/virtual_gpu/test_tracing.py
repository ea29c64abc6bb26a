"""Models that PyTorch traces, by an export or a backend of `torch.compile`: oomph's hooks are no part of it."""

import pytest

EXPORTED = """
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)
    def forward(self, x):
        return self.inner(x).relu() + x

model = Net().cuda().eval().requires_grad_(False)
x = torch.randn(4, 32, device="cuda")
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes=[{0: batch}])
with FakeTensorMode(allow_non_fake_inputs=True) as mode:
    model(mode.from_tensor(x))
module = program.module()
for n in (6, 8, 10):
    module(torch.randn(n, 32, device="cuda"))
torch.export.export(model, (x,), dynamic_shapes=[{0: batch}], strict=True)
"""


def test_what_an_export_traces_is_no_pass(oomph):
    """Nor are its sizes, which are symbols, those of the job; strict exports trace the hooks, too."""
    run = oomph(EXPORTED, "-q", "--no-measure")
    assert run.status == 0 and run.json["verdict"] == "fits", run.err
    assert run.json["step_count"] == 3


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs"]
)
def test_backends_of_torch_compile(oomph, backend):
    """`prims`, which the third one calls, were looked up before the virtual GPU came; under a mode they crashed."""
    code = f"""
    import torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {{}}))

    x = torch.randn(16, 64, device="cuda")
    with Counts():
        assert torch.ops.prims.convert_element_type(x, torch.bfloat16).dtype == torch.bfloat16
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    fast = torch.compile(model, backend="{backend}")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = fast(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    run = oomph(code, "-q", "--no-measure")
    assert run.status == 0 and run.json["step_count"] == 3, run.err


def test_lengths_of_a_nested_tensor_are_no_size(oomph):
    run = oomph(
        """
        import torch
        from torch import nn

        embed, linear = nn.Embedding(100, 32).cuda(), nn.Linear(32, 32).cuda()
        optimizer = torch.optim.AdamW([*embed.parameters(), *linear.parameters()])
        for _ in range(3):
            rows = [torch.randint(0, 100, (n,), device="cuda") for n in (4, 7, 3)]
            h = linear(embed(torch.nested.nested_tensor(rows, layout=torch.jagged)))
            optimizer.zero_grad()
            torch.stack([row.mean(0) for row in h.unbind()]).sum().backward()
            optimizer.step()
        """
    )
    assert run.json["verdict"] == "fits", run.err
