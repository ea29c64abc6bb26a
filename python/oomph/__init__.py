"""oomph fits a PyTorch job into the GPU you have."""

from typing import Any

from oomph._oomph import __version__

__all__ = ["__version__", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register `%%oomph`; IPython calls this for `%load_ext oomph`."""
    from oomph import notebook

    notebook.load(shell)
