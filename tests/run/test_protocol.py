"""What passes between the command, the script's process and the virtual GPU: both sides of each agree."""

import ast
import ctypes
import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from oomph import _protocol
from oomph._protocol import File, Refused, RunDirectory, Settings
from oomph._virtual_gpu import library

from tests.support.command import OOMPH, ROOT
from tests.support.protocol import WRITTEN

SETTINGS = WRITTEN["settings"]
C_TYPES = {
    "()": None,
    "c_int": ctypes.c_int,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "usize": ctypes.c_size_t,
    "*mut c_char": ctypes.c_char_p,
    "Text": ctypes.c_char_p,
    "Out<u64>": ctypes.POINTER(ctypes.c_uint64),
    "*mut u8": ctypes.c_void_p,
    "*mut c_void": ctypes.c_void_p,
    "Out<Usage>": ctypes.POINTER(library.Usage),
    "*mut PoolEvent": ctypes.POINTER(library.PoolEvent),
}


def sources(of, suffix):
    return [path for path in Path(ROOT, of).rglob(f"*{suffix}") if "tests" not in path.parts]


def test_files_and_variables_have_the_same_names_on_both_sides():
    for file in File:
        name = file.name.title().replace("_", "")
        assert WRITTEN["files"][name] == file.value
    here = {name: getattr(_protocol, name) for name in ("RUN", "RANKS", "LAUNCHER")}
    assert here.items() <= WRITTEN["variables"].items()
    assert all(name.startswith(_protocol.PREFIX) for name in WRITTEN["variables"].values())


def test_the_black_box_has_the_same_layout_on_both_sides():
    assert WRITTEN["black_box"] == dict(
        format=_protocol.BOX_FORMAT,
        ring_length=_protocol.RING_LENGTH,
        words={word.name: word for word in _protocol.BoxWord},
        parts={part.name: part for part in _protocol.BoxPart},
        phases=list(_protocol.PHASES),
        why=["", *(why.name for why in _protocol.Why)],
    )


@pytest.mark.parametrize("which", ["by_default", "all"])
def test_settings_have_the_same_fields_on_both_sides(which):
    from oomph._recorder.resize import Resize

    parsed = dataclasses.asdict(Settings.parse(json.dumps(SETTINGS[which])))
    assert dict(parsed, format=_protocol.FORMAT) == SETTINGS[which]
    resize = Resize(**parsed["resize"])
    assert {name: getattr(resize, name) for name in parsed["resize"]} == parsed["resize"]


def test_the_rules_for_unknown_values_are_known():
    from oomph._virtual_gpu.assumptions import RULES

    assert {SETTINGS[which]["unknown"] for which in SETTINGS} <= set(RULES)


def test_settings_that_lack_or_have_more_are_an_error():
    for change in (lambda s: s.pop("fork"), lambda s: s.update(colour="red")):
        settings = dict(SETTINGS["by_default"])
        change(settings)
        with pytest.raises(TypeError, match=r"fork|colour"):
            Settings.parse(json.dumps(settings))


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("kind", ["script", "rank"])
def test_settings_of_another_version_are_refused(tmp_path, kind):
    with pytest.raises(Refused, match=r"oomph.settings/9.*oomph.settings/1"):
        Settings.parse('{"format": "oomph.settings/9"}')
    (tmp_path / "settings.json").write_text('{"format": "oomph.settings/9", "other": 1}')
    (tmp_path / "script.py").write_text("print('ran')")
    environment = {**os.environ, _protocol.RUN: str(tmp_path / "settings.json")}
    words = ["-m", "oomph.launch", "script.py"]
    if kind == "rank":
        environment[_protocol.RANKS] = environment.pop(_protocol.RUN)
        environment.update(RANK="0", PYTHONPATH=str(Path(_protocol.__file__).parent / "_hook"))
        words = words[2:]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and not done.stdout and "Traceback" not in done.stderr
    reason = (tmp_path / "refused.txt").read_text()
    assert "oomph.settings/9" in reason and "Install the same version" in reason


def test_nothing_else_spells_what_passes_between_them():
    """Each side has one place for names of files and variables."""
    # These two are common words, too.
    names = set(WRITTEN["files"].values()) - {"lock", "status"}
    found = []
    for path in sources("python/oomph", ".py"):
        if path.name == "_protocol.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and (text in names or re.fullmatch(r"OOMPH_\w+", text)):
                found.append((path.name, text))
    for crate in ("oomph-job", "oomph-fit", "oomph-cli", "oomph-py"):
        for path in sources(f"crates/{crate}/src", ".rs"):
            if path.name not in ("run_directory.rs", "settings.rs", "schemas.rs"):
                strings = re.findall(r'"([^"\n]*)"', path.read_text())
                found += [(path.name, s) for s in strings if s in names or re.match(r"OOMPH_\w", s)]
    assert not found


def test_every_function_of_the_virtual_gpu_has_its_signature():
    declared = {}
    for path in sources("crates/oomph-vgpu/src", ".rs"):
        pattern = r"fn (oomph_vgpu_\w+)\((.*?)\) -> (\S+), or"
        for name, arguments, result in re.findall(pattern, path.read_text()):
            types = [argument.split(": ")[1] for argument in arguments.split(", ") if argument]
            declared[name] = (C_TYPES[result], [C_TYPES[kind] for kind in types])
    assert declared == library.SIGNATURES
    fields = (
        Path(ROOT, "crates/oomph-vgpu/src/report.rs").read_text().split("pub struct Usage {")[1]
    )
    fields = re.findall(r"pub (\w+): u64", fields.split("}")[0])
    assert [name for name, _ in library.Usage._fields_] == fields


@pytest.mark.usefixtures("started")
def test_a_virtual_gpu_of_another_version_is_refused(tmp_path):
    (tmp_path / "script.py").write_text("import torch; print('ran')")
    (tmp_path / "sitecustomize.py").write_text(
        "import oomph._virtual_gpu.library as library\nlibrary.INTERFACE = 99\n"
    )
    done = subprocess.run(
        [OOMPH, "run", "--gpu", "t4", "script.py"], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "ran" not in done.stdout, done.stderr
    said = [line for line in done.stderr.splitlines() if "interface" in line]
    assert len(said) == 1 and said[0].startswith(
        f"error: the virtual GPU speaks version {library.INTERFACE}"
    ), said


def test_without_a_virtual_gpu_there_is_no_library(tmp_path):
    code = "from oomph._virtual_gpu.library import *; print(is_loaded(), is_forked()); library()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False False\n" and "Unusable: no virtual GPU" in done.stderr


def modes(directory):
    """The permissions of a directory and of everything in it, by name."""
    paths = [directory, *directory.rglob("*")]
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_what_the_recorder_writes_is_for_its_owner_alone(tmp_path):
    directory = RunDirectory(tmp_path / "run").rank("rank-0")
    os.makedirs(directory.run.path, mode=0o700)
    directory.make()
    directory.write(File.ENDING, "it ended")
    _protocol.Status(directory).say("step 1")
    _protocol.open_private(directory.call(0)).close()
    assert set(modes(tmp_path / "run").values()) == {0o700, 0o600}


@pytest.mark.parametrize("gpu", ["t4", "t4:2"])
def test_a_run_is_for_its_owner_alone(tmp_path, gpu):
    (tmp_path / "script.py").write_text("import torch; torch.zeros(1 << 35, device='cuda')")
    # The run without a limit, which follows where memory runs out, writes the same files once more.
    ranks = ["--no-measure", "--", "torchrun", "--standalone", "--nproc-per-node=2", "script.py"]
    words = ["script.py"] if gpu == "t4" else ranks
    done = subprocess.run(
        [OOMPH, "run", "--gpu", gpu, "--out", "run", *words], cwd=tmp_path,
        capture_output=True, text=True, umask=0o022, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = modes(tmp_path / "run")
    assert any(path.endswith("record.json") for path in found)
    assert {path: mode for path, mode in found.items() if mode & 0o077} == {}


def test_a_reader_never_sees_half_a_file(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write(File.RECORD, "whole")
    with pytest.raises(KeyboardInterrupt), directory.writing(File.RECORD) as file:
        file.write(b"ha")
        raise KeyboardInterrupt
    assert Path(directory.file(File.RECORD)).read_text() == "whole"
