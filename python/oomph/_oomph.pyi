"""The Rust extension."""

from pathlib import Path

__version__: str

def main(args: list[str], python: str | Path, package: str | Path) -> int: ...
def pack(
    lengths: bytes,
    linear: float,
    quadratic: float,
    budget: float,
    max_samples: int,
    window: int,
    shuffle: bool,
    largest_first: bool,
    ranks: int,
    seed: int,
) -> tuple[bytes, bytes]: ...
def describe_modules(modules: list[str]) -> str: ...
def next_levers(
    directory: str | Path, applied: str, missing: int, samples: int, forbid: list[str]
) -> str | None: ...
def notebook_cells(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]: ...
def read_plan(text: str, script: str, arguments: list[str]) -> tuple[str, str, list[str]]: ...
def lever_order() -> list[str]: ...
def lever_environment(levers: str, environment: dict[str, str]) -> list[tuple[str, str]]: ...
