"""The console entry: hands the arguments to Rust. Imports nothing heavy, so `--help` is quick."""

import os
import signal
import sys

from oomph._oomph import main as _main


def main() -> int:
    """Run the command line in `sys.argv` and return its exit status."""
    # Rust waits for children with the interpreter's handler out of the way, so Ctrl-C
    # reaches both at once and the command reports what it has.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main(sys.argv[1:], sys.executable, os.path.dirname(os.path.abspath(__file__)))


if __name__ == "__main__":
    sys.exit(main())
