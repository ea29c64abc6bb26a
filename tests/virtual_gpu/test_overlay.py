"""What a script on the virtual GPU writes does not reach the user's files, and looks to it as if it did."""

import os
import subprocess
import sys
from pathlib import Path

import oomph
import pytest

LIBRARY = Path(oomph.__file__).parent / "_vgpu" / "libcuda.so.1"
PROGRAM = Path(__file__).parent.parent / "support" / "random_files.py"
COUNT = 80


def lower(directory):
    """Files that were there before."""
    for name in ["a", "c.txt", "sub/a", "sub/deep/a", "old/z"]:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"lower {name}")
    (directory / "ln").symlink_to("sub")


def listing(directory):
    """What is really there."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_text()
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def preloaded(overlay, place, *words, **more):
    """A command with the library, whose files are protected in `place` alone."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "OOMPH_OVERLAY": f"{overlay}:-/:-/tmp:-{place.parents[1]}:+{place}",
    }
    return subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, check=False, **more
    )


@pytest.fixture
def places(tmp_path):
    """The overlay's directory, one for the program without it, and one for the program with it."""
    overlay, plain, protected = tmp_path / "overlay", tmp_path / "1" / "w", tmp_path / "2" / "w"
    overlay.mkdir()
    lower(plain)
    lower(protected)
    return overlay, plain, protected


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("begun", [True, False], ids=["the GPU has worked", "it has not"])
def test_a_program_sees_what_it_would_see_without(places, seed, begun):
    overlay, plain, protected = places
    if begun:
        (overlay / "begun").touch()
    before = listing(protected)
    words = [sys.executable, str(PROGRAM), str(seed), str(COUNT)]
    one = subprocess.run(words, cwd=plain, capture_output=True, text=True, check=True)
    other = preloaded(overlay, protected, *words)
    assert other.stdout == one.stdout and other.returncode == 0, other.stderr
    after = listing(protected)
    if begun:
        assert after == before
    else:
        files = {name for name, (_, _, content) in before.items() if content is not None}
        assert {name: after.get(name) for name in files} == {name: before[name] for name in files}


def test_other_programs_see_it_too(places):
    overlay, _, protected = places
    (overlay / "begun").touch()
    before = listing(protected)
    script = """
        echo one > a; mkdir run; echo two > run/new; mv run/new run/newer; cp -r sub copy; rm -r sub
        mv c.txt d.txt; cat a run/newer d.txt; echo; ls; find copy -type f; ls sub; cd run && pwd && cat ../a
    """
    done = preloaded(overlay, protected, "sh", "-c", script)
    assert done.stdout.split() == [
        *["one", "two", "lower", "c.txt", "a", "copy", "d.txt", "ln", "old", "run"],
        *sorted(["copy/a", "copy/deep/a"], key=done.stdout.split().index),
        *[f"{protected}/run", "one"],
    ]
    assert listing(protected) == before


SAVES = """
import os, tempfile, torch
open("prepared.txt", "w").write("downloaded")
model = torch.nn.Linear(100, 100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
left = tempfile.mkdtemp(prefix="left-")
for step in range(4):
    model(torch.randn(8, 100, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "model.pt")
    torch.save(model.state_dict(), os.path.join(left, "model.pt"))
    os.makedirs(f"saved/{step}", exist_ok=True)
    torch.save(optimizer.state_dict(), f"saved/{step}/optimizer.pt")
    with open("log.txt", "a") as log:
        log.write(f"{step}\\n")
os.remove("old.pt")
print("log", open("log.txt").read().split(), sorted(os.listdir("saved")), os.path.exists("old.pt"))
print("loaded", sorted(torch.load("model.pt")), "left in", left)
"""


def test_a_checkpoint_stays_as_it_was(oomph, tmp_path):
    for name in ["model.pt", "log.txt", "old.pt"]:
        (tmp_path / name).write_text("mine\n")
    done = oomph(SAVES)
    assert done.status == 0, done.err
    assert "log ['mine', '0', '1', '2', '3'] ['0', '1', '2', '3'] False" in done.out
    assert "loaded ['bias', 'weight']" in done.out
    for name in ["model.pt", "log.txt", "old.pt"]:
        assert (tmp_path / name).read_text() == "mine\n"
    assert not (tmp_path / "saved").exists()
    assert (tmp_path / "prepared.txt").read_text() == "downloaded"
    left = Path(done.out.partition("left in ")[2].split()[0])
    assert left.name.startswith("left-") and not left.exists()
    note = " ".join(done.err.split())
    assert (
        "note: 6 files of" in note and "(log.txt and 2 more: as before); see --keep-files" in note
    )


def test_weights_that_safetensors_saves_stay_as_they_were(oomph, tmp_path):
    """It renames its own file past the C library."""
    (tmp_path / "model.safetensors").write_text("of a real run")
    code = """
    import os, torch
    from safetensors.torch import load_file, save_file
    x = torch.ones(8, device="cuda")
    os.makedirs("checkpoints/1")
    for path in "model.safetensors", "checkpoints/1/model.safetensors":
        save_file({"x": torch.arange(4.0)}, path)
        save_file({"x": torch.arange(5.0)}, path)
        print(load_file(path)["x"].tolist(), sorted(os.listdir(os.path.dirname(path) or ".")))
    try:
        save_file({"x": torch.arange(4.0)}, "nowhere/model.safetensors")
    except Exception as error:
        print(type(error).__name__)
    """
    found = oomph(code)
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("[0.0, 1.0, 2.0, 3.0, 4.0]") and "'model.safetensors'" in lines[0]
    assert lines[1:3] == ["[0.0, 1.0, 2.0, 3.0, 4.0] ['model.safetensors']", "SafetensorError"]
    assert (tmp_path / "model.safetensors").read_text() == "of a real run"
    assert not (tmp_path / "checkpoints").exists()


def test_files_are_kept_if_asked(oomph, tmp_path):
    (tmp_path / "old.pt").write_text("mine\n")
    done = oomph(SAVES, "--keep-files")
    assert done.status == 0, done.err
    assert (tmp_path / "model.pt").stat().st_size > 1000 and (tmp_path / "saved" / "3").is_dir()
    assert not (tmp_path / "old.pt").exists()
    assert "--keep-files" not in done.err


def test_nothing_is_uploaded(oomph):
    done = oomph("""
        import torch
        from huggingface_hub import HfApi, create_repo
        torch.ones(4, device="cuda").sum()
        api = HfApi(endpoint="http://127.0.0.1:9", token="hf_none")
        print("made", api.create_repo("me/model"))
        open("weights.bin", "w").write("x")
        print("sent", api.upload_file(path_or_fileobj="weights.bin", path_in_repo="w", repo_id="me/model"))
        later = api.upload_folder(folder_path=".", repo_id="me/model", run_as_future=True)
        print("later", later.result())
    """)
    assert done.status == 4 or done.status == 0, done.err
    assert "made http://127.0.0.1:9/me/model" in done.out
    assert "sent http://127.0.0.1:9/me/model" in done.out and "later http" in done.out
    assert done.err.count("nothing is uploaded to the Hugging Face Hub") == 1
