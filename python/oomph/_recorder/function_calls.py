"""Which of the user's functions run outside of modules in the first steps, and what each call was given and gave."""

from __future__ import annotations

import functools
import threading
import types
from typing import Any, cast

import torch

from oomph import _user_functions as user_functions
from oomph._recorder.addresses import addresses
from oomph._recorder.progress import MARKED_STEPS, Progress
from oomph._user_functions import in_transform, may_be_repeated

MOST_CALLS = 20_000
"""Calls beyond are not kept."""

_in_backward = torch._C._current_graph_task_id


class FunctionCalls:
    """Watches calls of functions that may be computed again, in the thread that runs the script.

    They have no hooks as modules have: they are replaced where scripts keep them.
    """

    def __init__(self, progress: Progress, calls: list[list[Any]]) -> None:
        """`calls` are those of modules, among which these are kept."""
        self._progress, self._calls = progress, calls
        self._watched = self._begun = False
        self._clear: dict[types.FunctionType, bool] = {}
        """Whether a function may be computed again."""
        self._kept = 0

    @property
    def around(self) -> int:
        """The call around a model that is called now; 0: none."""
        running = self._progress.functions
        return running[-1] if running else 0

    def watch(self) -> None:
        """Begin to watch, or go on."""
        if self._watched:
            return
        self._watched = True
        user_functions.watch(self._wrap, outside=True)
        if self._begun:
            return
        self._begun = True
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def watched(*args: Any, **kwargs: Any) -> None:
            self._goes_back()
            backward(*args, **kwargs)

        torch.autograd.backward = watched

    def stop(self) -> None:
        """Put back the script's functions."""
        self._progress.functions.clear()
        if self._watched:
            self._watched = False
            user_functions.leave(self._wrap)

    def _goes_back(self) -> None:
        """What runs a backward pass itself is no part of a forward pass."""
        for call in self._progress.functions:
            self._calls[call][0] = ""
        self._progress.functions.clear()

    def _wrap(self, name: str, function: types.FunctionType) -> types.FunctionType:
        thread = threading.get_ident()

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            progress = self._progress
            if (
                not self._watched
                or not torch.is_grad_enabled()
                or progress.running
                or progress.step >= MARKED_STEPS
                or self._kept >= MOST_CALLS
                or _in_backward() != -1
                or threading.get_ident() != thread
                or torch.compiler.is_compiling()
                or in_transform()
                or not self._is_clear(function)
            ):
                return function(*args, **kwargs)
            return self._call(name, function, args, kwargs)

        return cast("types.FunctionType", called)

    def _is_clear(self, function: types.FunctionType) -> bool:
        known = self._clear.get(function)
        if known is None:
            known = self._clear[function] = may_be_repeated(function)
        return known

    def _call(self, name: str, function: types.FunctionType, args: tuple, kwargs: dict) -> Any:
        running, calls = self._progress.functions, self._calls
        call = len(calls)
        calls.append([name, self.around, addresses((args, kwargs)), []])
        self._kept += 1
        running.append(call)
        try:
            output = function(*args, **kwargs)
        finally:
            ended = running and running[-1] == call
            if ended:
                running.pop()
        if ended:
            calls[call][3] = addresses(output)
        return output
