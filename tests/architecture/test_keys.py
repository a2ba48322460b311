"""Every Redis key is made in `feedback/keys.py`, and nothing here loads a pickle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("feedback", "persistence", "barrier", "worker", "projections", "gateway", "app")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
SCRIPTS = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.lua"))]
KEY_HOME = ROOT / "feedback/keys.py"
# A key of ours, or one of RQ's, spelled out: `feedback:events:`, `rq:job:`, `rq:queue:`.
KEY = re.compile(r"^(feedback|rq):[a-z_{-]", re.ASCII)


def literals(path: Path) -> Iterator[str]:
    """String constants of a module, those inside f-strings too, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in documentation:
            yield node.value if isinstance(node.value, str) else node.value.decode(errors="replace")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_redis_key_is_spelled_outside_its_home() -> None:
    found = [(str(path), text) for path in SOURCES for text in literals(path) if KEY.match(text) and path != KEY_HOME]
    assert found == []
    assert any(KEY.match(text) for text in literals(KEY_HOME)), "the search finds nothing where the keys are"


def test_scripts_take_their_keys_from_the_caller() -> None:
    """A Lua script spells no prefix of a key either."""
    assert SCRIPTS
    for path in SCRIPTS:
        code = "\n".join(line.partition("--")[0] for line in path.read_text(encoding="utf-8").splitlines())
        assert not re.search(r"""["'](feedback|rq):""", code), path


def test_no_module_loads_code_from_data() -> None:
    """Redis and files hold data, never code."""
    unsafe = {"pickle", "dill", "marshal", "shelve"}
    assert [str(path) for path in SOURCES if not unsafe.isdisjoint(imports(path))] == []
