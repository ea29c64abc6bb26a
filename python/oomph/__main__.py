"""The console entry: hands the arguments to Rust. Imports nothing heavy, so `--help` is fast."""

import os
import signal
import sys

from oomph._oomph import main as _main

STARTS_SCRIPT = ("run", "fit", "drift", "check", "doctor")
"""Commands that run a script."""


def main() -> int:
    """Run the command line in `sys.argv` and return its exit status."""
    # Ctrl-C ends a command at once. But if a script runs, it goes to the script, and the command
    # continues and reports. Children do not inherit an empty handler; they would inherit SIG_IGN.
    starts_script = sys.argv[1:2] and sys.argv[1] in STARTS_SCRIPT
    signal.signal(signal.SIGINT, (lambda *_: None) if starts_script else signal.SIG_DFL)
    package = os.path.dirname(os.path.abspath(__file__))
    return _main(sys.argv[1:], sys.executable, package, sys.path)


if __name__ == "__main__":
    sys.exit(main())
