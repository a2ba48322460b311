"""Files and functions stay as small as a reader needs them. No exemptions."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("feedback", "persistence", "barrier", "worker", "projections", "gateway", "app", "tests", "benchmarks")
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_every_file_has_fewer_than_400_lines() -> None:
    sizes = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: lines for path, lines in sizes.items() if lines >= MAX_FILE_LINES} == {}


def test_every_function_has_fewer_than_60_lines() -> None:
    sizes = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in sizes.items() if lines >= MAX_FUNCTION_LINES} == {}
