"""Batches that a data loader prepares on the CPU alone: their operators do not come to the value layer."""

import runpy
import textwrap

import pytest
import torch

LOADS = """
    import hashlib
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.manual_seed(2)
    known = torch.arange(4, device="cuda")
    pictures = torch.randn(8, 3, 160, 160)  # drawn when they are read

    class Pictures(Dataset):
        def __len__(self):
            return len(pictures)

        def __getitem__(self, i):
            if {uses_gpu}:
                known.mul_(2)
            if i % 2 == 0:
                print("aside", i // 2, torch._C._dispatch_tls_is_dispatch_key_excluded("Fake"))
            return pictures[i] + torch.rand(3, 1, 1)

    model = torch.nn.Linear(160, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Pictures(), 2):
        print("batch", hashlib.sha256(batch.numpy().tobytes()).hexdigest())
        model(batch.cuda()).sum().backward()
        optimizer.step()
    print("known", known.sum().item())
"""


def asides(out):
    return [line.split()[2] == "True" for line in out.splitlines() if line.startswith("aside")]


def test_from_the_second_batch_on(oomph):
    run = oomph(LOADS.format(uses_gpu="False"))
    assert run.status == 0, run.err
    assert asides(run.out) == [False, True, True, True], run.out
    assert "known 6" in run.out


def test_batches_are_what_they_are_without_oomph(oomph, tmp_path, monkeypatch, capsys):
    """Also those of tensors that wait to be drawn."""
    run = oomph(LOADS.format(uses_gpu="False"))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda t: t)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda m: m)
    plain = tmp_path / "plain.py"
    plain.write_text(textwrap.dedent(LOADS.format(uses_gpu="False")).replace(', device="cuda"', ""))
    runpy.run_path(str(plain))
    same = [line for line in capsys.readouterr().out.splitlines() if line.startswith("batch")]
    assert len(same) == 4
    assert [line for line in run.out.splitlines() if line.startswith("batch")] == same


@pytest.mark.parametrize("when", ["True", "i > 3"], ids=["from the first", "later"])
def test_a_loader_that_uses_the_gpu(oomph, when):
    run = oomph(LOADS.format(uses_gpu=when))
    assert run.status == 0, run.err
    said = any("used the GPU in a later batch" in one["what"] for one in run.json["assumptions"])
    if when == "True":
        assert asides(run.out) == [False] * 4 and not said
        assert f"known {6 * 2**8}" in run.out, run.out
    else:
        assert said, run.out
