"""URLs of servers behind Sentinels, read without asking anybody."""

from typing import Any

import pytest
from redis.sentinel import Sentinel

from feedback.connection import connect, like
from feedback.errors import QueueUnavailable
from feedback.sentinels import PrimaryPool, Service, service_of


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("redis+sentinel://a/feedback", Service("feedback", (("a", 26379),), {"db": 0}, {})),
        (
            "redis+sentinel://a:1,[::1]:2,[::2]/feedback/3",
            Service("feedback", (("a", 1), ("::1", 2), ("::2", 26379)), {"db": 3}, {}),
        ),
        (
            "redis+sentinel://host:p%40ss%2Fword@a/feedback?sentinel_password=other&sentinel_username=watcher",
            Service(
                "feedback",
                (("a", 26379),),
                {"db": 0, "username": "host", "password": "p@ss/word"},
                {"username": "watcher", "password": "other"},
            ),
        ),
        (
            "rediss+sentinel://a/feedback?ssl_ca_certs=/ca.pem",
            Service(
                "feedback",
                (("a", 26379),),
                {"db": 0, "ssl": True, "ssl_ca_certs": "/ca.pem"},
                {"ssl": True, "ssl_ca_certs": "/ca.pem"},
            ),
        ),
    ],
)
def test_a_url_says_where_sentinels_are_and_how_to_speak_with_both(url: str, service: Service) -> None:
    assert service_of(url) == service


@pytest.mark.parametrize("url", ["redis://a/0", "rediss://a/0", "unix:///run/valkey.sock"])
def test_other_urls_name_the_server_itself(url: str) -> None:
    assert service_of(url) is None
    with connect(url) as redis:
        assert redis.connection_pool.make_connection() is not None


@pytest.mark.parametrize("rest", ["a", "a/", "a//0", "a/feedback/one", "/feedback", "a:b/feedback", "a,/feedback"])
def test_a_url_that_lacks_a_part_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(QueueUnavailable) as refused:
        connect(f"redis+sentinel://:secret@{rest}")
    assert "secret" not in str(refused.value)


def test_a_client_like_somebody_elses_asks_the_same_sentinels() -> None:
    """Without its decoding and retries, and always for the primary."""
    options: dict[str, Any] = {"socket_timeout": 0.5, "decode_responses": True, "password": "p"}
    theirs = Sentinel([("a", 1), ("b", 2)], min_other_sentinels=1, **options).slave_for("feedback")
    with theirs, like(theirs) as ours:
        pool = ours.connection_pool
        assert isinstance(pool, PrimaryPool)
        assert (pool.service_name, pool.is_master) == ("feedback", True)
        assert pool.connection_kwargs["decode_responses"] is False
        assert pool.connection_kwargs["password"] == "p"
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        assert [(kwargs["host"], kwargs["port"]) for kwargs in asked] == [("a", 1), ("b", 2)]
        assert pool.sentinel_manager.min_other_sentinels == 1
