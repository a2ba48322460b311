"""`/healthz`: the process runs. `/readyz`: it can serve. For whoever restarts processes and balances load."""

import asyncio
from http import HTTPStatus

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from feedback import keys
from gateway.context import Gateway
from gateway.web.answers import json_answer, refusal_answer
from gateway.web.problems import RETRY_AFTER_S, refused

_PATIENCE_S = 2.0


def health_routes(gateway: Gateway) -> list[BaseRoute]:
    """Both are for everybody, and say nothing about anything else."""

    async def healthz(request: Request) -> Response:
        del request
        return json_answer({"status": "ok"})

    async def readyz(request: Request) -> Response:
        del request
        reason = "The gateway is stopping." if gateway.is_draining else await _why_not(gateway)
        if reason is None:
            return json_answer({"status": "ok"})
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return refusal_answer(refused(status, "not-ready", reason, Retry_After=str(RETRY_AFTER_S)))

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def _why_not(gateway: Gateway) -> str | None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            is_set_up = await gateway.redis.execute_command("EXISTS", keys.TOPOLOGY)
    except (RedisError, TimeoutError):
        return "The queue is out of reach."
    return None if is_set_up else "No worker has set the queue up yet."
