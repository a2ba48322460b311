"""One suite, every engine of the sidecar store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.sidecar import SidecarStore
from tests.conformance.sidecar_engines import ENGINES, Engine


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__.removesuffix("Engine"))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine_class: type[Engine] = request.param
    opened = engine_class(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def store(engine: Engine) -> SidecarStore:
    """An empty store of each engine."""
    return engine.fresh()
