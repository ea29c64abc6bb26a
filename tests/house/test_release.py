"""What a release says of itself: one version, all dependencies, and files that name the repository alike."""

import ast
import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT

sys.path.insert(0, str(Path(ROOT, "release")))
import bill
import notes

ROOT = Path(ROOT)
CARGO, PYPROJECT = ((ROOT / name).read_text() for name in ("Cargo.toml", "pyproject.toml"))
# Of the environment that oomph is installed in.
# Triton comes with torch.
# NumPy comes with CuPy, and is imported for it only.
NOT_DECLARED = {"torch", "triton", "numpy"}
NAMES = {"IPython": "ipython"}


def test_the_version_stands_in_one_place():
    version = notes.version(CARGO)
    note, text = notes.notes((ROOT / "CHANGELOG.md").read_text(), version)
    assert text and (note == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", note))
    words = [
        "git",
        "grep",
        "-lF",
        version,
        "--",
        ".",
        ":!*.lock",
        ":!bench",
        ":(exclude,glob)crates/*/src/**",
    ]
    places = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    # npm wants one of its own for the extension, which must be the same.
    npm = [f"editors/vscode/{name}.json" for name in ("package", "package-lock")]
    assert sorted(places) == ["CHANGELOG.md", "Cargo.toml", *sorted(npm)]


def test_what_the_package_imports_is_declared():
    declared = set(re.findall(r'^\w+ = \["([\w-]+)', PYPROJECT, re.M)) | NOT_DECLARED
    used = set()
    for path in ROOT.glob("python/oomph/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            used |= {name.partition(".")[0] for name in names}
    foreign = {name for name in used if name not in sys.stdlib_module_names and name != "oomph"}
    assert {"torch", "torchao", "transformers"} <= foreign
    assert {NAMES.get(name, name) for name in foreign} <= declared


def test_the_repository_has_one_name():
    (repository,) = re.findall(r'^repository = "https://github\.com/(.+)"', CARGO, re.M)
    owner = repository.partition("/")[0]
    words = [
        "git",
        "grep",
        "-hoE",
        r"[A-Za-z0-9_-]+/oomph(@|/blob|/raw|/security|/tree|\.git)",
        "--",
        "*.md",
        "*.yml",
        "*.yaml",
        "*.toml",
        "*.rs",
    ]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("/")[0] for line in found.splitlines()} == {owner}


def test_actions_are_pinned():
    """What a release is built and signed with cannot change under its name."""
    for path in [*ROOT.glob(".github/workflows/*.yml"), ROOT / "action.yml"]:
        for used in re.findall(r"^[\s-]*uses: (.+)$", path.read_text(), re.M):
            assert re.fullmatch(r"\./.+|[\w/-]+@[0-9a-f]{40}  # v[\d.]+", used), (
                f"{path.name}: {used}"
            )


def test_a_shorter_bill_of_materials_is_that_of_the_record():
    component = {
        "name": "zmij",
        "version": "1.0",
        "description": "text",
        "author": "a person",
        "hashes": [{"alg": "SHA-256"}],
    }
    materials = {"metadata": {"component": dict(component)}, "components": [component]}
    files = {
        "oomph/__init__.py": b"",
        "oomph-1.dist-info/sboms/oomph.cyclonedx.json": json.dumps(materials, indent=2).encode(),
        "oomph-1.dist-info/RECORD": b"oomph/__init__.py,sha256=x,0\noomph-1.dist-info/sboms/oomph.cyclonedx.json,sha256=old,7\noomph-1.dist-info/RECORD,,\n",
    }
    found = bill.shorter(files)
    assert list(found) == list(files)
    name = "oomph-1.dist-info/sboms/oomph.cyclonedx.json"
    kept = {key: component[key] for key in ("name", "version", "hashes")}
    assert json.loads(found[name]) == {"metadata": {"component": kept}, "components": [kept]}
    digest = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=").decode()
    assert found["oomph-1.dist-info/RECORD"].decode().splitlines() == [
        "oomph/__init__.py,sha256=x,0",
        f"{name},sha256={digest},{len(found[name])}",
        "oomph-1.dist-info/RECORD,,",
    ]
