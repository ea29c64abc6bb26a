"""The units that a loss averages over: the weights that make micro-batches add up to the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WeightFunction = Callable[[Any], "float | torch.Tensor"]
"""The weight of a micro-batch: the number of units its loss averages over."""


def samples(batch: Any) -> float:
    """The loss is a mean over samples."""
    from oomph._training.nested import batch_size

    return float(batch_size(batch))


def tokens(key: str = "labels", ignore: int = -100, shift: bool = True) -> WeightFunction:
    """The loss is a mean over tokens: those of `batch[key]` that are not `ignore`.

    `shift`: the first token of each row predicts nothing, as in causal language models of
    Hugging Face; say `False` for models whose labels line up with their inputs.
    """

    def count(batch: Any) -> float:
        try:
            labels = batch[key]
        except (KeyError, TypeError, IndexError):
            raise TypeError(
                f"weights by tokens need batch[{key!r}]; found a {type(batch).__name__}"
                + (f" with {', '.join(map(str, batch))}" if hasattr(batch, "keys") else "")
                + '. Name the key with oomph.tokens("…"), or pass a function of the micro-batch.'
            ) from None
        rows = labels if isinstance(labels, (list, tuple)) else [labels]
        total = 0
        for row in rows:
            row = torch.as_tensor(row)
            total += int((row[..., 1:] if shift else row).ne(ignore).sum())
        return float(total)

    return count


def weight_function(weight: str | WeightFunction) -> WeightFunction:
    """`weight` as a function; it may be "samples", "tokens" or a function of a micro-batch."""
    if weight == "samples":
        return samples
    if weight == "tokens":
        return tokens()
    if callable(weight):
        return weight
    raise ValueError(
        f'weight: expected "samples", "tokens" or a function of a micro-batch; found {weight!r}'
    )
