"""A training script of the usual form, and patches of levers applied to it."""

import json
import subprocess
import textwrap

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

        def forward(self, x):
            heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
            x = x + nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
            return x + self.mlp(self.norm(x))

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.ModuleList(Block(width) for _ in range(4))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    def evaluate(model, loader):
        model.eval()
        graph = False
        for x, y in loader:
            graph |= model(x.to(DEVICE)).requires_grad
        model.train()
        return graph

    def main():
        name = "a name of the script's own"
        torch.manual_seed(1)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        model = Net(WIDTH).to(DEVICE)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=1e-2,
            fused=False,
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
        data = TensorDataset(torch.randn(2 * BATCH, 8, WIDTH), torch.randint(0, 10, (2 * BATCH,)))
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=BATCH):
                x, y = x.to(DEVICE), y.to(DEVICE)
                optimizer.zero_grad(set_to_none=False)
                out = model(x)
                loss = criterion(out, y)
                loss.backward()
                optimizer.step()
            scheduler.step()
            graph = evaluate(model, DataLoader(data, batch_size=BATCH))
        return model.state_dict(), optimizer.state_dict(), [group["lr"] for group in optimizer.param_groups], graph
"""


def script(device="cpu", width=16, batch=8):
    code = textwrap.dedent(SCRIPT).lstrip()
    for name, value in (("DEVICE", repr(device)), ("WIDTH", width), ("BATCH", batch)):
        code = code.replace(name, str(value))
    return code


def by_hand(code, *levers, ran=()):
    from oomph import _oomph

    listed = json.dumps([{"name": n, **p} for n, p in levers])
    return _oomph.by_hand("train.py", code, listed, list(ran))


def patched(tmp_path, code, *levers, ran=()):
    """The script with the levers' patch applied, all of which has a place in it."""
    patch = by_hand(code, *levers, ran=ran)
    assert "\n--- a/train.py" in patch and "by hand:" not in patch, patch
    (tmp_path / "train.py").write_bytes(code.encode())
    (tmp_path / "oomph-plan.patch").write_bytes(patch.encode())
    done = subprocess.run(
        ["git", "apply", "oomph-plan.patch"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + patch
    changed = (tmp_path / "train.py").read_bytes().decode()
    assert changed != code
    compile(changed, "train.py", "exec")
    return changed
