"""The style guide as tests: sizes, leftovers, documentation of what is public, where SQL is, and no dead modules."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "workerflow"

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# What users or the command line import or run, so that no other module needs to.
ENTRIES = {
    "workerflow", "workerflow.cli", "workerflow.console", "workerflow.telemetry", "workerflow.testing",
    "workerflow.testing.pytest_plugin",
}  # fmt: skip

TEXT_FOLDERS = (".ci", "bench", "docs", "examples", "src", "tests")
TEXT_SUFFIXES = {"", ".md", ".py", ".sql", ".toml", ".txt", ".yaml", ".yml"}
# Written in two parts, so that this file does not hold them itself.
LEFTOVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATHS = ("/work" + "/", "/root" + "/")

TRANSACTION = re.compile(r"\s*(PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b", re.IGNORECASE)
# Capital keywords need no second word; small ones do, or every sentence that starts with "update" would count.
STATEMENT = re.compile(
    r"\s*((SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP|WITH|VACUUM|ATTACH|PRAGMA|BEGIN|COMMIT|ROLLBACK"
    r"|SAVEPOINT|RELEASE)\b"
    r"|(?i:select\b.*\bfrom\b|insert\s+(or\s+\w+\s+)?into\b|update\s+\w+\s+set\b|delete\s+from\b|with\s+\w+\s+as\s*\("
    r"|(create|alter|drop)\s+(unique\s+)?(table|index|trigger|view)\b|pragma\s+\w+|begin\s+(immediate|exclusive)\b))",
    re.DOTALL,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class StringConstant(NamedTuple):
    lineno: int
    value: str


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in modules()}
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    assert [
        f"{relative(path)}:{node.lineno} {node.name} has {lines} lines"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, Function) and (lines := length(node)) > FUNCTION_LINES_MAX
    ] == []


def test_no_module_prints() -> None:
    assert [
        f"{relative(path)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ] == []


def test_no_file_has_leftovers_or_paths_of_one_machine() -> None:
    assert [
        f"{relative(path)}:{number} {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if LEFTOVER.search(line) or any(machine_path in line for machine_path in MACHINE_PATHS)
    ] == []


def test_every_public_name_can_be_imported_and_the_list_is_sorted() -> None:
    names = public_names()
    assert [name for name in names if not hasattr(package(), name)] == []
    assert len(names) == len(set(names))
    # The order that the linter's RUF022 mends: constants, classes, then the rest.
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_every_public_class_and_function_has_an_example() -> None:
    assert [
        name for name, value in public_values() if documentable(value) and not has_example(value.__doc__ or "")
    ] == []


def test_every_public_method_says_what_it_does() -> None:
    assert [
        f"{name}.{member}"
        for name, value in public_values()
        if isinstance(value, type)
        for member, function in vars(value).items()
        # Found in the base class when the method has none itself: an override keeps its contract.
        if not member.startswith("_") and is_method(function) and not inspect.getdoc(getattr(value, member))
    ] == []


def test_sql_is_in_sql_files_only() -> None:
    assert [
        f"{relative(path)}:{node.lineno} {node.value.strip()[:60]!r}"
        for path in modules()
        for node in string_constants(tree(path))
        if STATEMENT.match(node.value) and not (is_of_one_database(path) and TRANSACTION.match(node.value))
    ] == []


def test_a_sql_file_is_one_statement_with_a_comment_above() -> None:
    for path in queries():
        text = path.read_text("utf-8")
        assert text.startswith("-- "), f"{relative(path)} must begin with a comment that says what it does"
        statements = [part for part in without_comments_and_strings(text).split(";") if part.strip()]
        assert len(statements) == 1, f"{relative(path)} holds {len(statements)} statements"


def test_every_sql_file_is_used() -> None:
    mentioned = {name for path in modules() for name in names_mentioned(tree(path))}
    assert [relative(path) for path in queries() if not {path.stem, path.name} & mentioned] == []


def test_both_databases_have_the_same_sql_files() -> None:
    if not (PACKAGE / "store" / "postgres").is_dir():
        pytest.skip("there is one database so far")
    names = {
        database: {path.name for path in queries() if path.parent.name == database}
        for database in ("sqlite", "postgres")
    }
    assert names["sqlite"] == names["postgres"]


def test_every_module_is_imported_by_another_or_is_an_entry() -> None:
    used = {name for path in modules() for name in modules_mentioned(path)}
    # Importing a module imports the packages that it is in.
    used |= {name.rsplit(".", depth)[0] for name in used for depth in range(1, name.count(".") + 1)}
    names = {module_name(path) for path in modules()}
    assert sorted(name for name in names - used - ENTRIES if not name.endswith(".__main__")) == []


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    errors = importlib.import_module("workerflow.errors")
    real = {
        name: next(base.__name__ for base in value.__bases__ if issubclass(base, Exception))
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.WorkflowError) and value.__module__ == errors.__name__
    }
    del real["WorkflowError"]
    assert drawn_tree(errors.__doc__ or "") == real


# What is looked at.


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def queries() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts)


def texts() -> Iterator[Path]:
    candidates = list(ROOT.glob("*"))
    for folder in TEXT_FOLDERS:
        candidates += (ROOT / folder).rglob("*")
    for path in sorted(candidates):
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
            yield path


def package() -> ModuleType:
    return importlib.import_module("workerflow")


def public_names() -> list[str]:
    return list(package().__all__)


def public_values() -> list[tuple[str, object]]:
    return [(name, getattr(package(), name)) for name in public_names() if hasattr(package(), name)]


# How it is looked at.


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def length(node: Function) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def documentable(value: object) -> bool:
    return isinstance(value, type) or inspect.isfunction(value)


def has_example(docstring: str) -> bool:
    return ">>> " in docstring or re.search(r"::\n\s*\n\s+\S", docstring) is not None


def is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def is_of_one_database(path: Path) -> bool:
    return path.parent.parent == PACKAGE / "store"


def string_constants(module: ast.Module) -> Iterator[StringConstant]:
    """Every string but the docstrings and other strings that stand alone."""
    alone = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield StringConstant(node.lineno, node.value)


def names_mentioned(module: ast.Module) -> Iterator[str]:
    yield from (constant.value for constant in string_constants(module))
    yield from (node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute))


def without_comments_and_strings(sql: str) -> str:
    return re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", "", sql, flags=re.DOTALL)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_mentioned(path: Path) -> Iterator[str]:
    """The modules that the one at *path* imports, by a statement or by a name in a string, itself left out."""
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        yield from (name for name in names if name.startswith("workerflow.") and name != module_name(path))


def drawn_tree(docstring: str) -> dict[str, str]:
    """The parent of each name in a tree drawn with ``├── Name``, four columns a level."""
    parents: dict[str, str] = {}
    line_of_parents = ["WorkflowError"]
    for line in docstring.splitlines():
        position = line.find("── ")
        if position >= 0:
            depth = (position + 3) // 4
            name = line[position + 3 :].split()[0]
            parents[name] = line_of_parents[depth - 1]
            line_of_parents[depth:] = [name]
    return parents
