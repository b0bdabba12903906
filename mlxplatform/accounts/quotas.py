"""Per-key limits on inference, counted in the broker so that all web processes share them.

Redis keys: ``mlxp:quota:rpm:<key>:<minute>`` counts requests, ``mlxp:quota:tpd:<key>:<day>`` tokens,
``mlxp:quota:live:<key>`` is a sorted set of running requests by the time they may be forgotten, so that
a killed web process cannot hold a place for ever.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mlxplatform.accounts.identity import Identity
from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client, sync_client
from mlxplatform.inference.contract import Refusal

#: Seconds after which a running request no longer counts; longer than any answer is expected to take.
_LIVE_TTL = 3600


@dataclass(frozen=True)
class Standing:
    """Where a key stands on its request limit, for the rate-limit headers of an answer."""

    limit: int
    remaining: int
    reset_seconds: int


def _key(kind: str, *parts: object) -> str:
    return ":".join([queues.NAMESPACE, "quota", kind, *map(str, parts)])


@asynccontextmanager
async def admitted(identity: Identity, request_id: str) -> AsyncIterator[Standing | None]:
    """Hold a place within the key's limits while the body runs.

    Raises:
        Refusal: 429 with ``retry_after`` when a limit is reached.
    """
    quota = identity.quota
    if not (quota.requests_per_minute or quota.tokens_per_day or quota.concurrency):
        yield None
        return
    await check_allowance(identity)
    redis = async_client()
    standing = None
    if quota.requests_per_minute:
        standing = await _count_request(identity, quota.requests_per_minute)
    live = _key("live", identity.key_id)
    if quota.concurrency:
        now = time.time()
        async with redis.pipeline(transaction=True) as pipe:
            pipe.zremrangebyscore(live, "-inf", now)
            pipe.zadd(live, {request_id: now + _LIVE_TTL})
            pipe.zrank(live, request_id)
            pipe.expire(live, _LIVE_TTL)
            rank = (await pipe.execute())[2]
        if rank >= quota.concurrency:
            await redis.zrem(live, request_id)
            raise _over(f"This key may run {quota.concurrency} requests at once.", 1)
    try:
        yield standing
    finally:
        if quota.concurrency:
            await redis.zrem(live, request_id)


async def check_allowance(identity: Identity) -> None:
    """
    Raises:
        Refusal: 429 when the key's tokens for today are used up.
    """
    allowed = identity.quota.tokens_per_day
    if allowed:
        _compare(await async_client().get(_spent_today(identity.key_id)), allowed)


def check_allowance_now(key_id: str, allowed: int) -> None:
    """As :func:`check_allowance`, for threads."""
    if allowed:
        _compare(sync_client().get(_spent_today(key_id)), allowed)


def _compare(spent: Any, allowed: int) -> None:
    if int(spent or 0) >= allowed:
        raise _over(f"This key's {allowed} tokens for today are used up.", _seconds_to_midnight())


def _spent_today(key_id: str) -> str:
    return _key("tpd", key_id, _day())


async def spend(key_id: str, tokens: int) -> None:
    """Count ``tokens`` against today's allowance of a key."""
    async with async_client().pipeline(transaction=False) as pipe:
        await _count_tokens(pipe, key_id, tokens).execute()


def spend_now(key_id: str, tokens: int) -> None:
    """As :func:`spend`, for threads."""
    with sync_client().pipeline(transaction=False) as pipe:
        _count_tokens(pipe, key_id, tokens).execute()


def _count_tokens(pipe: Any, key_id: str, tokens: int) -> Any:
    name = _spent_today(key_id)
    pipe.incrby(name, tokens)
    pipe.expire(name, 2 * 86400)
    return pipe


async def _count_request(identity: Identity, limit: int) -> Standing:
    now = time.time()
    minute = int(now // 60)
    name = _key("rpm", identity.key_id, minute)
    async with async_client().pipeline(transaction=False) as pipe:
        pipe.incr(name)
        pipe.expire(name, 120)
        used = (await pipe.execute())[0]
    reset = max(1, int((minute + 1) * 60 - now))
    if used > limit:
        raise _over(f"This key may send {limit} requests a minute.", reset)
    return Standing(limit, limit - used, reset)


def _over(message: str, retry_after: int) -> Refusal:
    return Refusal(429, "rate_limit_exceeded", message, retry_after=retry_after)


def _day() -> str:
    return datetime.now(UTC).strftime("%Y%m%d")


def _seconds_to_midnight() -> int:
    now = datetime.now(UTC)
    return 86400 - (now.hour * 3600 + now.minute * 60 + now.second)
