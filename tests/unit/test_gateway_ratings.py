"""Ratings for the page: a store that cannot be had holds nobody up for long."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from feedback.errors import ShuttingDown, StoreUnavailable
from gateway.reading.ratings import Ratings
from persistence.sidecar import SidecarStore

PATIENCE_S = 30.0


def test_a_store_that_is_silent_holds_up_one_reader_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it asked by everybody once it has failed."""
    asked, may_fail = threading.Semaphore(0), threading.Event()

    def silent(url: str) -> SidecarStore | None:
        del url
        asked.release()
        assert may_fail.wait(PATIENCE_S)
        raise StoreUnavailable("it is silent")

    monkeypatch.setattr("gateway.reading.ratings.find_store", silent)
    monkeypatch.setattr("gateway.reading.ratings._AGAIN_S", 0.0)
    ratings = Ratings("sqlite:////nowhere")
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(ratings.sessions)
        assert asked.acquire(timeout=PATIENCE_S)
        may_fail.set()
        assert isinstance(first.exception(), StoreUnavailable)
        may_fail.clear()
        again = beside.submit(ratings.sessions)
        assert asked.acquire(timeout=PATIENCE_S)
        try:
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="silent"):
                    ratings.sessions()
        finally:
            may_fail.set()
        assert isinstance(again.exception(), StoreUnavailable)
    assert not asked.acquire(blocking=False), "nobody else asked"
    monkeypatch.setattr("gateway.reading.ratings.find_store", lambda url: None)
    assert ratings.sessions() is None, "it is asked again"
    ratings.close()
    with pytest.raises(ShuttingDown):
        ratings.sessions()


def test_soon_after_a_failure_the_store_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def absent(url: str) -> SidecarStore | None:
        asked.append(url)
        raise StoreUnavailable("it is away")

    monkeypatch.setattr("gateway.reading.ratings.find_store", absent)
    monkeypatch.setattr("gateway.reading.ratings._AGAIN_S", 3600.0)
    ratings = Ratings("sqlite:////nowhere")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="away"):
            ratings.sessions()
    assert asked == ["sqlite:////nowhere"]
