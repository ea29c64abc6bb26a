"""Records each rank that a launcher starts, and each process that a script starts: `oomph run` puts this directory first in
`PYTHONPATH`, and Python imports this module when it starts. It then runs the environment's own module of this
name.
"""

import contextlib
import importlib.machinery
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]
# If oomph is not installed in this process's environment, the process is not recorded.
with contextlib.suppress(ModuleNotFoundError):
    from oomph._protocol import may_be_rank

    if may_be_rank(os.environ):
        from oomph._ranks.recording import begin

        begin()
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(sys.modules[__name__])
