"""What the script imports from installed packages, imported before the fork.

The first process that runs the script notes what it imports (`Notes`). Another one imports the same (`learn`), and looks
whether anything else in it has changed by that: then nothing is learned. In the processes that are forked from it, the
modules are not in `sys.modules` until the script imports one of them (`Learned`). Whatever waits for the import of one
(`_import_hooks`) acts then, and what it replaces is replaced in the other modules, too.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import locale
import os
import random
import signal
import site
import sys
import sysconfig
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oomph import _import_hooks, _protocol
from oomph._ranks import fork_server, launcher

LATE = {"COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "VLLM_CACHE_ROOT"}  # fmt: skip
"""Variables that nothing reads on import, beside those of oomph."""
BLAS = "OPENBLAS_NUM_THREADS"
"""NumPy's library starts threads when it is loaded, unless this is 1; SciPy's, too."""
_OTHERS = ("os", "signal", "subprocess", "threading", "numpy", "numpy.random")
"""Modules with functions that oomph replaces, beside torch and those that are learned."""

Place = tuple[Any, str]
"""A module's dictionary or a class, and a name in it."""


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that any package may read when it is imported."""
    return {
        name: value
        for name, value in environment.items()
        if name not in LATE
        and not name.startswith(_protocol.PREFIX)
        and not launcher.is_allocators(name, value)
    }


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()


class Notes:
    """Notes what the script imports before it uses CUDA, in this order, and with what environment."""

    def __init__(self, file: int) -> None:
        """They are for the process that has `file`, too."""
        self._file = file
        self._names: dict[str, None] = {}
        self._environments: list[tuple[int, dict[str, str]]] = []
        self._over = False
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Each import asks the finders once."""
        if self._over or name in self._names:
            return
        if "." not in name:
            environment = read_early(os.environ)
            if not self._environments or environment != self._environments[-1][1]:
                self._environments.append((len(self._names), environment))
            self._over = _uses_cuda()
        if not self._over:
            self._names[name] = None

    def write(self) -> None:
        """The script is over."""
        if os.lseek(self._file, 0, os.SEEK_END):
            return
        steps = []
        for number, (first, environment) in enumerate(self._environments):
            last = [at for at, _ in self._environments[number + 1 : number + 2]]
            names = list(self._names)[first : last[0] if last else None]
            steps.append((environment, [name for name in names if name in sys.modules]))
        notes = dict(steps=steps, path=sys.path)
        with open(self._file, "w", closefd=False) as file:
            json.dump(notes, file)


def _installed() -> list[str]:
    """The directories that packages are installed in."""
    found = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [os.path.realpath(path) + os.sep for path in found]


def _wanted(names: list[str]) -> Iterator[str]:
    """Those of them that are installed; oomph and what has been imported are not among them."""
    installed = tuple(_installed())
    for name in names:
        top = name.partition(".")[0]
        if top == "oomph" or name in sys.modules:
            continue
        spec = importlib.machinery.PathFinder.find_spec(top)
        if spec is None:
            continue
        places = [spec.origin, *(spec.submodule_search_locations or [])]
        if all(
            place is None or os.path.realpath(place).startswith(installed)
            for place in places
        ):  # fmt: skip
            yield name


def _state() -> dict[str, Any]:
    """What an import must not change, if it is to be the same before and after the fork."""
    import torch

    numpy = sys.modules.get("numpy.random")
    return dict(
        threads=len(os.listdir("/proc/self/task")),
        files=sorted(_files()),
        handlers=[signal.getsignal(number) for number in sorted(signal.valid_signals())],
        directory=os.getcwd(),
        locale=locale.setlocale(locale.LC_ALL),
        python=(
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            gc.isenabled(),
            gc.get_threshold(),
        ),
        hooks=[
            sys.excepthook,
            sys.displayhook,
            sys.unraisablehook,
            sys.gettrace(),
            sys.getprofile(),
        ],
        streams=[sys.stdin, sys.stdout, sys.stderr],
        finders=[list(sys.meta_path), list(sys.path_hooks), list(sys.path)],
        numpy=None if numpy is None else repr(numpy.get_state(legacy=False)["state"]),
        torch=bytes(torch.default_generator.get_state().numpy().data),
        cuda=(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()),
        defaults=(
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
            torch.is_autocast_enabled("cuda"),
        ),
    )


def _files() -> Iterator[tuple[str, str]]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            where = os.readlink(f"/proc/self/fd/{number}")
            if where != f"/proc/{os.getpid()}/fd":
                yield number, where


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _places(modules: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """Where functions and classes are bound in modules, and functions in their classes."""
    seen = set()
    for module in modules.values():
        if not isinstance(module, types.ModuleType):
            continue
        names = vars(module)
        for name, value in list(names.items()):
            if not callable(value):
                continue
            yield (names, name), value
            if isinstance(value, type) and id(value) not in seen:
                seen.add(id(value))
                for own, function in list(vars(value).items()):
                    if _is_function(function):
                        yield (value, own), function


def _bound(place: Place) -> Any:
    holder, name = place
    return (vars(holder) if isinstance(holder, type) else holder).get(name)


def _of_torch() -> dict[str, Any]:
    """The modules that oomph replaces functions in, beside those that are learned."""
    return {
        name: module
        for name, module in sys.modules.items()
        if name == "torch" or name.startswith("torch.") or name in _OTHERS
    }


class Learned:
    """The modules that were imported for the script."""

    def __init__(
        self, before: Mapping[str, Any], environment: dict[str, str], filters: int
    ) -> None:
        """`before` are the modules that were there; `filters` for warnings were added."""
        self.environment = environment
        self.sets: dict[str, str] = {}
        """The variables that the import sets."""
        self.replaces: list[tuple[dict[str, Any], str, Any, Any]] = []
        """What it binds to other functions in modules that were there: by what name, to which before, and to which now."""
        self.draws = False
        """Whether it draws from Python's random generator."""
        own = _installed()
        # Some that packages make have no file.
        installed = {
            name
            for name, module in sys.modules.items()
            if "." not in name and name != "oomph" and _is_below(module, own)
        }
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name not in before and name.partition(".")[0] in installed
        }
        self._filters = list(warnings.filters[:filters])
        # What was there before is frozen, and not among these.
        objects = gc.get_objects()
        places: dict[int, list[Place]] = {}
        classes: list[tuple[Place, Any]] = []
        of_classes: set[int] = set()
        for place, value in _places({**_of_torch(), **self._modules}):
            if isinstance(value, type):
                classes.append((place, value))
                of_classes.update(
                    id(part) for part in gc.get_referents(value) if type(part) is dict
                )
            else:
                places.setdefault(id(value), []).append(place)
        self._files = {
            id(vars(module)): module
            for module in self._modules.values()
            if isinstance(module, types.ModuleType)
        }
        known = {id(value) for _, value in classes}
        used: set[int] = set()
        holders: dict[int, tuple[Any, list[Any]]] = {}
        for holder in objects:
            # Methods are found by their class.
            if id(holder) in of_classes or holder is objects:
                continue
            module = self._files.get(id(holder))
            for value in gc.get_referents(holder):
                if id(value) in known:
                    used.add(id(value))
                elif id(value) in places and (
                    module is None or getattr(value, "__module__", None) != module.__name__
                ):
                    holders.setdefault(id(value), (value, []))[1].append(holder)
        self._classes = [(place, value) for place, value in classes if id(value) in used]
        self._references = [
            (value, places[number], found) for number, (value, found) in holders.items()
        ]

    @property
    def modules(self) -> Mapping[str, Any]:
        """Their names and the modules, as they were finished."""
        return self._modules

    def hide(self, request: dict[str, Any], declined: Callable[[], None]) -> None:
        """Begin as a process without them. `declined` is called if that was no use."""
        for name in self._modules:
            del sys.modules[name]
        del warnings.filters[: len(self._filters)]  # type: ignore[attr-defined]
        _filters_changed()
        for holder, name, old, _ in self.replaces:
            holder[name] = old
        self._request, self._declined, self._given = request, declined, False

    def offer(self) -> None:
        """The script may import them from now on."""
        self._drawn = random.getstate() if self.draws else None
        self._finder = _Finder(self._modules, self._give_back)
        sys.meta_path.insert(0, self._finder)

    def _give_back(self) -> None:
        """The script imports one of them: all are there, and what waits for one acts."""
        if self._given:
            return
        self._given = True
        if read_early(os.environ) != self.environment:
            self._start_plainly("the environment is another")
        if self.draws and random.getstate() != self._drawn:
            self._start_plainly("Python's random generator is not as it was")
        os.environ.update(self.sets)
        if "torch" not in sys.modules:
            importlib.import_module("torch")
        for holder, called, old, new in self.replaces:
            now = holder.get(called)
            if now is not old and not _wraps(new, old, now):
                self._start_plainly(f"{called} is replaced, and they replace it, too")
            holder[called] = new
        self._replace()
        warnings.filters[:0] = self._filters  # type: ignore[index]
        _filters_changed()
        for name, module in self._modules.items():
            if name not in sys.modules and _import_hooks.was_imported(name, module):
                self._replace()
        sys.meta_path.remove(self._finder)

    def _start_plainly(self, why: str) -> None:
        _say(f"started anew: {why}")
        self._declined()
        fork_server.start_plainly(self._request)

    def _replace(self) -> None:
        """Give the modules what they would have imported, where functions have been replaced since."""
        for place, value in self._classes:
            if _bound(place) is not value:
                self._start_plainly(f"{value} is replaced")  # there may be subclasses
        changed = [
            (value, places, holders)
            for value, places, holders in self._references
            if any(_bound(place) is not value for place in places)
        ]
        # A module may have it from another that has it from a third.
        for _ in range(3):
            for value, places, holders in changed:
                for holder in holders:
                    if any(part is value for part in gc.get_referents(holder)):
                        self._exchange(holder, value, places)

    def _exchange(self, holder: Any, old: Any, places: list[Place]) -> None:
        """Look where `holder` has a function from, and give it what is there now."""
        module = self._files.get(id(holder))
        if module is None:
            names = [n for n, v in holder.items() if v is old] if type(holder) is dict else []
            # Of `functools.wraps`.
            if names != ["__wrapped__"] or len(places) > 1:
                return self._start_plainly(f"{old} is held by {type(holder)}")
            holder["__wrapped__"] = _bound(places[0])
            return
        sources = _imports(module)
        for name, value in list(holder.items()):
            if value is not old:
                continue
            if name not in sources:
                return self._start_plainly(f"{old} is {module.__name__}.{name}")
            origin, attribute = sources[name]
            found = sys.modules.get(origin) or self._modules.get(origin)
            holder[name] = getattr(found, attribute, old)


def _say(what: str) -> None:
    path = os.environ.get(_protocol.FORKS_LOG)
    if path:
        with open(path, "a") as file:
            print(what, file=file)


def _wraps(outer: types.FunctionType, old: Any, new: Any) -> bool:
    """Make a function that calls `old` call `new`; False if it is not known how it calls it."""
    cells = [cell for cell in outer.__closure__ or () if cell.cell_contents is old]
    for cell in cells:
        cell.cell_contents = new
    if getattr(outer, "__wrapped__", None) is old:
        outer.__wrapped__ = new  # type: ignore[attr-defined]
    return bool(cells)


def _imports(module: types.ModuleType) -> dict[str, tuple[str, str]]:
    """From which module each name was imported, and its name there."""
    try:
        with open(module.__file__ or "", "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        return {}
    return {
        alias.asname or alias.name: (
            importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
            if node.level
            else node.module or "",
            alias.name,
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


class _Finder:
    """Offers the modules to the script."""

    def __init__(self, modules: Mapping[str, Any], give_back: Callable[[], None]) -> None:
        self._modules, self._give_back = modules, give_back

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._modules:
            return None
        module = self._modules[name]
        known = getattr(module, "__spec__", None)
        spec = importlib.machinery.ModuleSpec(name, _Loader(module, self._give_back))  # type: ignore[arg-type]
        if known is not None:
            spec.origin = known.origin
            spec.submodule_search_locations = known.submodule_search_locations
            spec.has_location = known.has_location
            spec.cached = known.cached
        return spec


class _Loader:
    def __init__(self, module: Any, give_back: Callable[[], None]) -> None:
        self._module, self._give_back = module, give_back
        self._spec = getattr(module, "__spec__", None)

    def create_module(self, spec: Any) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec
        self._give_back()


def _is_below(module: Any, places: list[str]) -> bool:
    """Whether a module, or the package that it is made by, is in one of the directories."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    if origin and os.path.isabs(origin):
        return os.path.realpath(str(origin)).startswith(tuple(places))
    return any(
        os.path.realpath(path).startswith(tuple(places)) for path in getattr(module, "__path__", ())
    )


def _filters_changed() -> None:
    """Warnings that were shown or hidden are looked up again."""
    changed = getattr(warnings, "_filters_mutated", None)
    if changed is not None:
        changed()


class _Differs(Exception):
    """The imports change more than which modules there are."""


def learn(notes: dict[str, Any]) -> Learned | None:
    """Import what a script imported; None if the process is not the same after that."""
    try:
        return _learn(notes)
    except Exception as reason:
        # Packages may do anything when they are imported.
        _say(f"nothing is learned: {reason!r}")
        return None


def _learn(notes: dict[str, Any]) -> Learned | None:
    began = time.monotonic()
    path, environment = list(sys.path), dict(os.environ)
    others = {n: v for n, v in environment.items() if n not in read_early(environment)}
    first: dict[str, str] = notes["steps"][0][0] if notes["steps"] else {}
    os.environ.clear()
    os.environ.update(first | others)
    if not os.environ.keys() & {BLAS, "OMP_NUM_THREADS"}:
        os.environ[BLAS] = "1"
    given = dict(os.environ)
    sys.path[:] = notes["path"]
    before, drawn = _state(), random.getstate()
    modules, filters = dict(sys.modules), list(warnings.filters)
    bound = list(_places(modules))
    for step, names in notes["steps"]:
        if not step.items() <= os.environ.items():
            break  # the script has set variables: what it imports then may read them
        for name in _wanted(names):
            if name not in sys.modules:
                # Some are made by others, or cannot be imported by themselves.
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
    if len(sys.modules) == len(modules):
        return None
    added = len(warnings.filters) - len(filters)
    if added < 0 or list(warnings.filters[added:]) != filters:
        raise _Differs("filters of warnings")
    after = _state()
    for name, value in before.items():
        if after[name] != value:
            raise _Differs(f"{name}: {value} and {after[name]}")
    replaced = []
    for place, value in bound:
        holder, called = place
        if _bound(place) is not value:
            if isinstance(holder, type) or not isinstance(holder.get(called), types.FunctionType):
                raise _Differs(f"{called} is replaced: {value}")
            replaced.append((holder, called, value, holder[called]))
    del bound
    now = dict(os.environ)
    if given.keys() - now.keys() or any(now[name] != given[name] for name in given):
        raise _Differs("variables are changed")
    standard = [
        os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
    ]
    for name in sys.modules.keys() - modules.keys():
        module = sys.modules[name]
        if _has_file(module) and not _is_below(module, [*_installed(), *standard]):
            raise _Differs(f"{name} is of the script")
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    gc.collect()
    _look_at_objects()
    what = Learned(modules, first, added)
    what.replaces = replaced
    what.sets = {name: value for name, value in now.items() if name not in given}
    what.draws = random.getstate() != drawn
    _say(f"learned {len(what.modules)} modules in {time.monotonic() - began:.1f} s")
    return what


def _has_file(module: Any) -> bool:
    return bool(getattr(module, "__file__", None) or list(getattr(module, "__path__", ())))


def _look_at_objects() -> None:
    """Nothing may have been made whose making the recorder watches, or that is random."""
    import torch

    for found in gc.get_objects():
        kind = type(found)
        if kind is random.Random or issubclass(kind, torch.optim.Optimizer):
            raise _Differs(f"there is {kind}")
        if issubclass(kind, torch.nn.Module) and [*found.parameters(), *found.buffers()]:
            raise _Differs(f"there is {kind}, with tensors")
