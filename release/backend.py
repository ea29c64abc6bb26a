"""What pip calls to build the package from source (PEP 517): the preloaded libraries first, then maturin with all the rest."""

import libraries
import maturin
from maturin import *  # noqa: F403  (the hooks that need no libraries)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel into a directory; return its file name."""
    libraries.build()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel that leads to this directory; return its file name."""
    libraries.build()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
