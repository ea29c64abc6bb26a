"""The parts of a model that are worth treating alike: repeated blocks, stages, parts of a Sequential."""

from __future__ import annotations

import torch

CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)
"""They are never called, so nothing can be done to them as a whole."""

REPEATS = (torch.nn.Sequential, *CONTAINERS)
"""What models keep their blocks in."""


def candidates(root: torch.nn.Module) -> list[list[str]]:
    """Groups of modules that one lever may treat alike, found by structure.

    Each group lists modules of one container that run one after the other, named as in plans
    (`GPT.blocks.0`), in their order; no module is inside another one of its group. The groups come
    from coarse to fine (a ResNet's stages, then the blocks of each stage); among equals, those with
    more parameters first. A group holds at least two modules, each with parameters, so that a choice
    can be made; repeated blocks are one group wherever they are held (a ModuleList, attributes).
    """
    found: list[tuple[int, int, list[str]]] = []
    seen: set[int] = set()

    def visit(module: torch.nn.Module, name: str, depth: int) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        children = [(f"{name}.{part}", child) for part, child in module.named_children()]
        for group in _groups(module, children):
            weight = sum(_parameters(child) for _, child in group)
            found.append((depth, -weight, [part for part, _ in group]))
        for part, child in children:
            visit(child, part, depth + 1)

    visit(root, type(root).__name__, 0)
    return [names for _, _, names in sorted(found, key=lambda entry: entry[:2])]


def repeated(root: torch.nn.Module) -> list[str]:
    """The blocks that a model repeats, named as in plans, in their order; outermost ones only.

    They are what a list, a dictionary or a Sequential holds at least two of, with parts of their
    own: an encoder's and a decoder's layers, the blocks of all stages of a ResNet.
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


def _groups(
    module: torch.nn.Module, children: list[tuple[str, torch.nn.Module]]
) -> list[list[tuple[str, torch.nn.Module]]]:
    """What of a module's children belongs together."""
    callable_ = [
        (name, child)
        for name, child in children
        if not isinstance(child, CONTAINERS) and _is_block(child)
    ]
    if isinstance(module, REPEATS):
        # Blocks of one list belong together; so do the parts of a Sequential, whatever they are.
        return [callable_] if len(callable_) > 1 else []
    # Stages are attributes of one type with parts of their own (`layer1` … `layer4`).
    kinds: dict[type, list[tuple[str, torch.nn.Module]]] = {}
    for name, child in callable_:
        kinds.setdefault(type(child), []).append((name, child))
    return [group for group in kinds.values() if len(group) > 1]


def _is_block(module: torch.nn.Module) -> bool:
    """Has parts of its own and parameters: a single layer saves little but its input."""
    return next(module.children(), None) is not None and _parameters(module) > 0


def _parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
