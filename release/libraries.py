"""Builds the libraries that the package preloads, into `python/oomph`: `python release/libraries.py [--profile dev] [--target T]`.

These are the virtual GPU, the file that programs open as NVML, and the net. Needs cargo and a C compiler; for a target such as
`aarch64-unknown-linux-gnu.2.28` (with the glibc that it may ask for) cargo-zigbuild and ziglang.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "oomph"


def build(profile="release", target=None):
    """Build the libraries and put them in the package."""
    cargo = os.environ.get("CARGO", "cargo")
    words = [cargo, "zigbuild", "--target", target] if target else [cargo, "build"]
    run(*words, "-q", "--locked", "--profile", profile, "-p", "oomph-vgpu", "-p", "oomph-net")
    metadata = run(cargo, "metadata", "--no-deps", "--format-version", "1", stdout=subprocess.PIPE)
    built = Path(json.loads(metadata.stdout)["target_directory"])
    if target:
        # The glibc behind the triple is zig's.
        built /= target.partition(".")[0]
    built /= "debug" if profile == "dev" else profile

    driver = install(built / "liboomph_vgpu.so", PACKAGE / "_vgpu" / "libcuda.so.1")
    # Triton before 3.5 links -lcuda.
    driver.with_name("libcuda.so").write_text("INPUT(libcuda.so.1)\n")
    nvml = PACKAGE / "_vgpu" / "nvml" / "libnvidia-ml.so.1"
    nvml.parent.mkdir(exist_ok=True)
    # The virtual GPU under another name.
    options = ["-s", "-soname", nvml.name, "--no-as-needed", "-rpath", "$ORIGIN/.."]
    run(*linker(options, target), "-shared", "-o", nvml, driver)
    nvml.with_name("libnvidia-ml.so").write_text("INPUT(libnvidia-ml.so.1)\n")
    install(built / "liboomph_net.so", PACKAGE / "_net" / "liboomph_net.so")


def linker(options, target):
    """The words that begin a command that links libraries without code of its own."""
    if target:
        return [sys.executable, "-m", "ziglang", "ld.lld", *options]
    words = [os.environ.get("CC", "cc"), "-nostdlib"]
    return words + [word for option in options for word in ("-Xlinker", option)]


def install(built, place):
    """Put a library in its place, which a running process may have mapped."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    shutil.copy(built, place)
    return place


def run(*words, **options):
    """Run a command; the first that fails ends the build."""
    done = subprocess.run([*map(str, words)], cwd=ROOT, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{words[0]} failed with status {done.returncode}")
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="release")
    parser.add_argument("--target")
    asked = parser.parse_args()
    build(asked.profile, asked.target)
