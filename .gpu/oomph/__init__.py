"""oomph fits a PyTorch job into the GPU you have."""

from oomph._oomph import __version__

__all__ = ["__version__"]
