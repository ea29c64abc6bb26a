"""Stands for a package that peft's tests import and that the chosen ones do not need."""

__version__ = "0"


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
