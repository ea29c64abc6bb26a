"""The console entry: hands the arguments to Rust. Imports nothing heavy, so `--help` is fast."""

import os
import signal
import sys

from oomph._oomph import main as _main


def main() -> int:
    """Run the command line in `sys.argv` and return its exit status."""
    # Ctrl-C ends a command at once, without a traceback. Those that run scripts see to it themselves.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    package = os.path.dirname(os.path.abspath(__file__))
    return _main(sys.argv[1:], sys.executable, package, sys.path)


if __name__ == "__main__":
    sys.exit(main())
