"""One suite, every engine of the sidecar store."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persistence.sidecar import SidecarStore
from tests.conformance.sidecar_engines import ENGINES, Engine, PostgresEngine


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__.removesuffix("Engine"))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine_class = request.param
    # A server is started for those only that need one.
    place = request.getfixturevalue("databases") if engine_class is PostgresEngine else tmp_path
    with closing(engine_class(place)) as opened:
        yield opened


@pytest.fixture
def store(engine: Engine) -> SidecarStore:
    """An empty store of each engine."""
    return engine.fresh()
