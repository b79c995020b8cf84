"""Modules of fedsim import each other in one direction, by relative imports."""

import ast
from pathlib import Path

import fedsim

ROOT = Path(fedsim.__file__).parent
MODULES = {".".join(("fedsim", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")}


def imported(name, path):
    """The modules of fedsim that a module imports, at import time or later."""
    package = name.removesuffix(".__init__") if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            base = f"{base}.{node.module}" if node.module else base
            for alias in node.names:
                target = next(
                    t for t in (f"{base}.{alias.name}", base, f"{base}.__init__") if t in MODULES or t == base
                )
                yield target if target in MODULES else f"{base}.__init__"


GRAPH = {name: sorted({m for m in imported(name, path) if m in MODULES}) for name, path in MODULES.items()}


def find_cycle(graph):
    """A list of modules each of which imports the next, the last the first; None if there is none."""
    done, way = set(), []

    def visit(name):
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return None
        way.append(name)
        found = next((cycle for other in graph[name] if (cycle := visit(other))), None)
        way.pop()
        done.add(name)
        return found

    return next((cycle for name in graph if (cycle := visit(name))), None)


def test_there_are_no_cycles():
    assert sum(map(len, GRAPH.values())) > 150
    assert find_cycle(GRAPH) is None


def test_a_cycle_would_be_found():
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"], "d": []}) == ["b", "c"]


def test_imports_inside_the_package_are_relative():
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "fedsim" for alias in node.names), name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.split(".")[0] not in ("fedsim", "__future__"), name


def test_what_is_imported_for_types_alone_is_not_of_fedsim():
    """A guarded import of our own would hide a cycle; matplotlib's are guarded because it is slow to import."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                assert {n.module.split(".")[0] for n in node.body if isinstance(n, ast.ImportFrom)} == {"matplotlib"}, (
                    name
                )
