"""Settings of JAX, which are in its environment before it is imported."""

from __future__ import annotations

from collections.abc import Sequence

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class JaxSettings(Lever):
    """How JAX takes memory, and how XLA plans with it.

    Needs: a script that uses JAX. Changes: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `XLA_PYTHON_CLIENT_ALLOCATOR` and
    `XLA_FLAGS`, where the script does not set them itself. Results: exact; with flags to rounding, as XLA may choose
    other kernels.
    """

    name = "jax_settings"

    def __init__(
        self,
        thousandths: int | None = None,
        allocator: str | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """As in the plan file."""
        super().__init__()

    def install(self, job: Job) -> None:
        """Refuse a script that uses PyTorch."""
        raise self.refuse("it is for scripts that use JAX, and this one uses PyTorch")


LEVER = JaxSettings
