"""The plugin's options, which are settings too."""

from __future__ import annotations

import pytest

OPTIONS: tuple[tuple[str, str, str | None, str], ...] = (
    ("gpu", "NAME", None, "run the tests on this virtual GPU: rtx-4090, a100-80gb:2, … (`oomph gpus` lists them)"),
    ("memory", "SIZE", None, "the virtual GPU's memory, if it is not the usual one, such as 10GiB"),
    ("baseline", "FILE", None, "compare each test's peak with FILE; written if it is not there"),
    ("tolerance", "PERCENT", "1", "how much more than in the baseline a peak may be, such as 1 or 2.5; default: 1"),
    ("largest", "N", "5", "how many of the largest tests the summary lists; default: 5"),
    (
        "compute", "SIZE", "4GiB",
        "how much host memory the values of GPU tensors may take; none computes small and integral ones only; default: 4GiB",
    ),
    (
        "uncomputed", "RULE", "fail",
        "what becomes of a test that checks values which the virtual GPU does not compute: fail, skip or ignore; default: fail",
    ),
)  # fmt: skip
"""Each is an option `--oomph-NAME VALUE` and a setting `oomph_NAME`: name, value, default, help."""


def setting(config: pytest.Config, name: str) -> str | None:
    """The value of an option of `OPTIONS`: of the command line, else of the configuration, else by default."""
    given = getattr(config.known_args_namespace, f"oomph_{name}", None)
    if given is None:
        given = config.getini(f"oomph_{name}") or next(o[2] for o in OPTIONS if o[0] == name)
    return None if given is None else str(given)
