"""What the command and the recorder share, as the command's side writes it down."""

import json
import os

from tests.support.command import ROOT

with open(os.path.join(ROOT, "crates/oomph-job/tests/protocol.json")) as file:
    WRITTEN = json.load(file)
"""Names of files and variables, and settings."""


def run_settings():
    """The settings of a run as the command writes them by default: no virtual GPU, no lock."""
    return dict(WRITTEN["settings"]["by_default"])
