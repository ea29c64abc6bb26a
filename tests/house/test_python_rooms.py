"""The package's modules: which room imports which, by what names, and that none changes another."""

import ast
import pathlib

import pytest

from tests.support.command import ROOT

# What differs between versions of Python and of torch, and lines on stderr, are for every room.
EVERYWHERE = {"_says", "_older_python", "_torch_features"}
PACKAGE = pathlib.Path(ROOT, "python", "oomph")

# Each room may import from itself and from these; what is a file in the package itself is a room.
MAY_IMPORT = {
    "_older_python": set(),
    "_torch_features": set(),
    "_calibration": set(),
    "_containers": set(),
    "_import_hooks": set(),
    "_oomph": set(),
    "_protocol": set(),
    "_random_states": set(),
    "_says": set(),
    "_steady_gradients": set(),
    "_untraced": set(),
    "_user_code": set(),
    "_user_functions": {"_user_code"},
    "_virtual_gpu": {"_import_hooks", "_untraced", "_user_code"},
    "levers._shared": {"_containers", "_import_hooks", "_oomph", "_user_functions"},
    "levers": {
        "_import_hooks",
        "_oomph",
        "_random_states",
        "_user_functions",
        "_virtual_gpu",
        "levers._shared",
    },
    "_training": {
        "_containers",
        "_oomph",
        "_protocol",
        "_random_states",
        "_user_code",
        "levers._shared",
        "levers",
    },
    "_recorder": {
        "_import_hooks",
        "_oomph",
        "_protocol",
        "_steady_gradients",
        "_untraced",
        "_user_code",
        "_user_functions",
        "_virtual_gpu",
        "levers._shared",
        "levers",
    },
    "_ranks": {"_protocol", "_recorder", "_virtual_gpu", "levers"},
    "_forks": {"_import_hooks", "_protocol", "_ranks"},
    "_testing": {"_oomph", "_protocol", "_recorder", "_user_code", "_virtual_gpu"},
    "_hook": {"_protocol", "_ranks"},
    "launch": {"_forks", "_protocol", "_ranks", "_recorder"},
    "huggingface": {"_training"},
    "lightning": {"_training"},
    "notebook": {"_protocol"},
    "_apply": {"_import_hooks", "_oomph", "_protocol", "levers"},
    "__main__": {"_oomph"},
    "": {"_apply", "_oomph", "_training", "notebook"},
}


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in PACKAGE.rglob("*.py")}
MODULES = {*FILES, *(module_name(path) for path in PACKAGE.rglob("*.pyi"))}
TREES = {module: ast.parse(path.read_text()) for module, path in FILES.items()}


def imports(module):
    """What a module imports of the package, anywhere in it: (module, name or None, bound as)."""
    found = []
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    found.append((alias.name, None, alias.asname or alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports by a relative path"
            for alias in node.names:
                bound, whole = alias.asname or alias.name, f"{node.module}.{alias.name}"
                if whole in MODULES:
                    found.append((whole, None, bound))
                elif node.module in MODULES:
                    found.append((node.module, alias.name, bound))
    return found


def room(module):
    parts = module.split(".")[1:]
    if parts[:2] == ["levers", "_shared"]:
        return "levers._shared"
    return parts[0] if parts else ""


def is_private(name):
    return name is not None and name.startswith("_") and not name.endswith("__")


def test_all_modules_are_found():
    assert {"oomph", "oomph.launch", "oomph._oomph", "oomph.levers._shared.job"} <= MODULES
    assert ("oomph._training.errors", "Refused", "Refused") in imports("oomph.huggingface")
    assert {room(module) for module in MODULES} == set(MAY_IMPORT)


def test_no_circle_of_imports():
    graph = {module: {to for to, _, _ in imports(module)} for module in TREES}

    def walk(module, path):
        assert module not in path, "a circle: " + " -> ".join([*path, module])
        if module not in done:
            for to in sorted(graph.get(module, ())):
                walk(to, [*path, module])
            done.add(module)

    done = set()
    for module in sorted(graph):
        walk(module, [])


def test_the_table_of_rooms_has_no_circle():
    def below(name):
        return set().union(*({to} | below(to) for to in MAY_IMPORT[name]))

    assert not [name for name in MAY_IMPORT if name in below(name)]  # a circle would never end


@pytest.mark.parametrize("module", sorted(TREES))
def test_rooms_import_downwards_and_public_names(module):
    own = room(module)
    for to, name, _ in imports(module):
        assert room(to) in {own, *MAY_IMPORT[own], *EVERYWHERE}, f"{module} imports {to}"
        assert not is_private(name), f"{module} imports {name} of {to}"


@pytest.mark.parametrize("module", sorted(TREES))
def test_no_module_changes_or_looks_into_another(module):
    """Neither `other.function = …` and `setattr(other, …)`, nor `other._private`."""
    bound = {name for _, _, name in imports(module)}

    def of_another(node):
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in bound

    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute) and of_another(node):
            where = f"{module}, line {node.lineno}: {ast.unparse(node)}"
            assert isinstance(node.ctx, ast.Load), f"{where} is changed"
            assert not is_private(node.attr), f"{where} is private"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            where = f"{module}, line {node.lineno}: {ast.unparse(node)}"
            assert not of_another(node.args[0]), f"{where} changes another module"


NEW_IN_3_10 = {"zip", "pairwise", "orig_argv"}


@pytest.mark.parametrize("module", sorted(set(TREES) - {"oomph._older_python"}))
def test_what_python_3_9_lacks_comes_from_one_place(module):
    """`zip` with `strict`, `itertools.pairwise` and `sys.orig_argv`."""
    taken = {name for to, name, _ in imports(module) if to == "oomph._older_python"}
    assert taken <= NEW_IN_3_10
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute) and node.attr in NEW_IN_3_10:
            assert ast.unparse(node) not in ("itertools.pairwise", "sys.orig_argv"), node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            strict = any(keyword.arg == "strict" for keyword in node.keywords)
            assert "zip" in taken or not strict, f"{module}, line {node.lineno}"


def test_no_duration_is_measured_by_the_time_of_day():
    """It jumps, by an hour or to another year. `watch.py` notes when each line was written."""
    used = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.time"
    }
    assert used == {"watch.py"}
