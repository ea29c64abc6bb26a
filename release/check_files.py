"""Checks the files of a release: `python release/check_files.py dist`. The first that is wrong ends it.

Wheels: their size, and that every library in them, also those that are preloaded, asks for no more than the glibc in the wheel's name.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

MOST_BYTES = 8_000_000
IN_EACH = (
    "oomph/_vgpu/libcuda.so.1",
    "oomph/_vgpu/nvml/libnvidia-ml.so.1",
    "oomph/_net/liboomph_net.so",
    "oomph/_oomph.abi3.so",
)
IN_SOURCE = (
    "Cargo.lock",
    "crates/oomph-vgpu/src/lib.rs",
    "crates/oomph-net/src/lib.rs",
    "release/backend.py",
    "web/dist/report.html",
    "PKG-INFO",
)


def check_wheel(path):
    """Check one wheel; return its glibc and its machine."""
    name = path.name.removesuffix(".whl")
    platform = name.split("-")[4]
    expect(
        "-cp39-abi3-" in name and platform.startswith("manylinux_2_28_"),
        path,
        "abi3 for Python 3.9 and manylinux_2_28",
        platform,
    )
    size = path.stat().st_size
    expect(size <= MOST_BYTES, path, f"at most {MOST_BYTES} bytes", size)
    names = zipfile.ZipFile(path).namelist()
    missing = [name for name in IN_EACH if name not in names]
    expect(not missing, path, "all libraries", f"no {missing}")
    shown = subprocess.run(
        ["auditwheel", "show", path], check=True, capture_output=True, text=True
    ).stdout
    found = " ".join(shown.split())
    expect(f'"{platform}"' in found, path, f"{platform} by auditwheel", found)
    print(f"{path.name}: {size / 1e6:.2f} MB, {platform}")


def check_source(path):
    """Check the source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SOURCE if name not in names]
    expect(not missing, path, "all sources", f"no {missing}")
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(names)} files")


def expect(is_so, path, expected, found):
    """End with one line if something is not so."""
    if not is_so:
        sys.exit(f"{path.name}: expected {expected}, found {found}")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for wheel in sorted(folder.glob("*.whl")):
        check_wheel(wheel)
    (source,) = folder.glob("*.tar.gz")
    check_source(source)
