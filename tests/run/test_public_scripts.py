"""What public scripts showed: small scripts that once came out wrong through `oomph run`."""

import subprocess
import sys
import textwrap

import pytest

from tests.support import schemas


@pytest.fixture
def run(tmp_path):
    """Runs a script's text on a virtual RTX 4090; gives the result of `--json`."""

    def run_script(text, *options, status=0, arguments=()):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        result = tmp_path / "result.json"
        command = [
            sys.executable, "-m", "oomph", "run", "--gpu", "rtx-4090", "--json", str(result),
            "--out", str(tmp_path / "out"), *options, str(script), *arguments,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        return schemas.read(result.read_text())

    return run_script


def test_evaluation_before_training_is_not_counted_as_steps(run):
    """Sanity checks and rollouts come before the first optimizer step (nanoGPT, PPO, Lightning)."""
    result = run(
        """
        import torch
        model = torch.nn.Linear(1000, 1000).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 1000, device="cuda")
        with torch.no_grad():
            for _ in range(10):
                model(x)
        for _ in range(10):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        "--steps", "3",
    )  # fmt: skip
    assert result["by_category"]["optimizer_state"] >= 2 * 4 * 1000 * 1000
    assert len(result["steps"]) == 3


def test_asking_for_torch_before_importing_it(run):
    """transformers and others look for torch without importing it, and import it later."""
    result = run(
        """
        import importlib.util
        assert importlib.util.find_spec("torch") is not None
        assert importlib.util.find_spec("torch") is not None
        import torch
        mask = torch.ones(4, 4, dtype=torch.bool, device="cuda")
        assert mask.all()
        assert mask.nonzero().shape == (16, 2)
        """
    )
    assert result["verdict"] == "fits"
    assert result["peak"]["allocated_bytes"] > 0


def test_corners_of_unknown_boxes_are_in_order(run):
    """DETR and others assert that boxes of the model are not inside out."""
    result = run(
        """
        import torch
        model = torch.nn.Linear(2048, 4).cuda()
        boxes = model(torch.randn(100_000, 2048, device="cuda")).sigmoid()
        x, y, w, h = boxes.unbind(-1)
        boxes = torch.stack([x - w, y - h, x + w, y + h], -1)
        assert (boxes[:, 2:] >= boxes[:, :2]).all()
        """
    )
    assert result["verdict"] == "fits"
    taken = "half of the comparisons were taken as true"
    assert any(taken in assumption["what"] for assumption in result["assumptions"])


def test_parts_of_large_unknown_tensors_are_unknown(run):
    """A small part of a large tensor that nobody computed must not pass for known."""
    result = run(
        """
        import torch
        x = torch.randn(1000, 1000, device="cuda") + 1
        assert x[0, 0].item() == 0.0
        """
    )
    read = "the script read a GPU value, which oomph does not compute: it got zero"
    assert [a["what"] for a in result["assumptions"]] == [read]


def test_gradient_scaler_keeps_its_scale(run):
    """Unknown gradients are finite: no step is skipped and the scale stays (UNet, timm, DDPM)."""
    result = run(
        """
        import torch
        model = torch.nn.Linear(1000, 1000).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(8, 1000, device="cuda")).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == 65536.0, scaler.get_scale()
        """
    )
    assert len(result["steps"]) == 3
    assert any("finite" in assumption["what"] for assumption in result["assumptions"])


def test_sizes_that_follow_from_values(run):
    """Known masks give exact sizes, whatever they choose from; unknown values give the rule's share."""
    result = run(
        """
        import torch
        big = (torch.randn(1000, 1000, device="cuda") + 1).requires_grad_()
        mask = torch.zeros(1000, 1000, dtype=torch.bool, device="cuda")
        mask[:3] = True
        chosen = torch.masked_select(big, mask)
        assert chosen.shape == (3000,)
        chosen.sum().backward()

        rows = torch.zeros(4, 300_000, device="cuda")
        source = torch.randn(2, 300_000, device="cuda", requires_grad=True)
        where = torch.tensor([True, False, False, True], device="cuda")[:, None].expand_as(rows)
        rows.masked_scatter(where, source).sum().backward()
        assert source.grad.shape == source.shape

        values, inverse, counts = torch.unique(big, return_inverse=True, return_counts=True)
        assert values.shape == counts.shape == (500_000,)
        assert inverse.shape == big.shape and inverse.max() < 500_000
        assert torch.unique(big[0], dim=0).shape == (500,)
        import torchvision
        boxes = torch.cat([big[:, :2], big[:, :2] + 1], 1)
        assert torchvision.ops.nms(boxes, big[:, 0], 0.5).shape == (500,)
        assert torch.unique(torch.tensor([3, 1, 3], device="cuda")).tolist() == [1, 3]
        """
    )
    whats = " ".join(assumption["what"] for assumption in result["assumptions"])
    assert "_unique2" in whats and "nms" in whats and "masked_select" not in whats
    assert "read a value back" not in whats


def test_workers_forked_off_are_left_alone(run):
    """On a real GPU nothing may touch CUDA in DataLoader's workers; and they are not this run."""
    result = run(
        """
        import torch
        from torch.utils.data import DataLoader

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                watched = torch._C._dispatch_tls_is_dispatch_key_included("Fake")
                return torch.ones(3) * (index + 1), watched

        model = torch.nn.Linear(3, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, watched in DataLoader(Data(), batch_size=2, num_workers=1):
            assert not watched.any() and x.min() > 0
            model(x.cuda()).sum().backward()
            optimizer.step()
        """
    )
    assert len(result["steps"]) == 4


def test_a_script_is_its_own_main_module(run):
    """As `python script.py` has it: an absolute `__file__`, and annotations that are objects."""
    result = run(
        """
        import dataclasses, os, torch
        assert os.path.isabs(__file__) and __name__ == "__main__"
        @dataclasses.dataclass
        class Options:
            rate: float = 0.1
        assert dataclasses.fields(Options)[0].type is float
        torch.ones(1, device="cuda")
        """
    )
    assert result["verdict"] == "fits"
