"""Where numbers go: TensorBoard, Weights & Biases, MLflow, Lightning's loggers, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Numbers = Mapping[str, float]
Log = Callable[[Numbers, int], Any]

STEP = "memory/step"
"""The axis of our charts in Weights & Biases, whose own step belongs to the script."""


def tracker(target: Any) -> Log:
    """What takes numbers and their step, for what a script logs with.

    `target` is a `SummaryWriter`; a run of Weights & Biases; the module `mlflow`, or one of Lightning's loggers, which
    log alike; a function of a dict of numbers; or several of these in a list.

    Raises `TypeError` for anything else.
    """
    if isinstance(target, Sequence) and not isinstance(target, str):
        logs = [tracker(each) for each in target]

        def to_all(numbers: Numbers, step: int) -> None:
            for log in logs:
                log(numbers, step)

        return to_all
    if hasattr(target, "add_scalar"):

        def to_tensorboard(numbers: Numbers, step: int) -> None:
            for name, value in numbers.items():
                target.add_scalar(name, value, step)

        return to_tensorboard
    if hasattr(target, "log_metrics"):
        return lambda numbers, step: target.log_metrics(dict(numbers), step=step)
    if hasattr(target, "define_metric"):
        target.define_metric(STEP, hidden=True)
        target.define_metric("memory/*", step_metric=STEP)
        return lambda numbers, step: target.log({**numbers, STEP: step})
    if callable(target):
        return lambda numbers, step: target(dict(numbers))
    raise TypeError(
        "log_to: expected a SummaryWriter, a run of Weights & Biases, the module mlflow, one of Lightning's loggers, "
        f"a function of a dict, or a list of these; found {target!r}"
    )
