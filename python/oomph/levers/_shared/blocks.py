"""Finds the parts of a model to treat alike: repeated blocks, stages, parts of a Sequential."""

from __future__ import annotations

import torch

CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)
"""They are never called, so a lever cannot wrap them as a whole."""

REPEATS = (torch.nn.Sequential, *CONTAINERS)
"""What models keep their blocks in."""


def repeated(root: torch.nn.Module) -> list[str]:
    """The blocks that a model repeats, named as in plans, in their order; outermost ones only.

    Modules with submodules of which a list, a dictionary or a Sequential holds at least two:
    an encoder's and a decoder's layers, the blocks of all stages of a ResNet.
    """
    found: dict[int, str] = {}

    def visit(module: torch.nn.Module, name: str) -> None:
        blocks: set[str] = set()
        if isinstance(module, REPEATS):
            held = [part for part, child in module.named_children() if _is_block(child)]
            blocks = set(held) if len(held) > 1 else set()
        for part, child in module.named_children():
            if id(child) in found:
                continue
            if part in blocks and not isinstance(child, CONTAINERS):
                found[id(child)] = f"{name}.{part}"
            else:
                visit(child, f"{name}.{part}")

    visit(root, type(root).__name__)
    return list(found.values())


def _is_block(module: torch.nn.Module) -> bool:
    """Has parts of its own and parameters: a single layer saves little but its input."""
    return next(module.children(), None) is not None and _parameters(module) > 0


def _parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
