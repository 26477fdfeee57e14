"""The runtime: its connection, and the sessions that it claims."""

import asyncio
import logging
import random
import ssl
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .channel import Channel
from .errors import TelapiError, from_wire
from .websocket import INVALID, Closed, WebSocket, decode, encode

PROTOCOL = "telapi.runtime.v1"
CONNECT_TIMEOUT = 10.0
RELEASE_TIMEOUT = 2.0  # when a Runtime is closed
MIN_DELAY, MAX_DELAY = 0.1, 5.0  # before a reconnect
HELLO_ID = 1  # also of requests whose reply does not matter

log = logging.getLogger("telapi_runtime")


def permanent(error: Exception, reason: TelapiError | None) -> TelapiError | None:
    """Returns why not to connect again, or None. Reason is what the service sent before it closed the connection."""
    closed = error if isinstance(error, Closed) else Closed(0, "")
    if closed.code in (1007, 1008, 1009) or 4500 <= closed.code < 5000:
        return reason or TelapiError("CONNECTION_CLOSED", str(error), {"closeCode": closed.code})
    if 400 <= closed.code < 500 and closed.code not in (408, 425, 429):
        try:
            return from_wire(decode(closed.reason)["error"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return TelapiError("HANDSHAKE_REJECTED", f"status {closed.code}: check the URL", {"status": closed.code})
    return error if isinstance(error, TelapiError) and error.code not in ("SERVICE_UNAVAILABLE", "RATE_LIMIT_EXCEEDED", "INTERNAL_ERROR") else None


class Pending(NamedTuple):
    """A request without a reply."""

    op: str
    channel: str | None
    frame: bytes
    result: asyncio.Future[Any]


class Runtime:
    """A connection to the service that reconnects and resumes by itself. Use it with async with.

    Requests wait while the connection or the store is down, and are repeated when their
    replies are lost. That is safe: each one names what it changes.
    """

    def __init__(self, url: str, key: str, *, name: str, resume_ms: int = 2000, tls: ssl.SSLContext | None = None) -> None:
        """Url is the base URL of the service, key an API key with the scope RUN_CALLS.

        A claim outlives a lost connection by resume_ms, at most 60,000.
        """
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid URL {url!r}: use one such as https://telapi.example.com")
        if not key.isascii() or not key.isprintable() or not key:
            raise ValueError("invalid key: use an API key or a console JWT")
        self._url = parts._replace(path=parts.path + "/ws/runtime", query="", fragment="").geturl()
        self._headers = {"Authorization": "Bearer " + key} if key.count(".") == 2 else {"X-API-Key": key}
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._hello = {"name": name, "resumeMs": resume_ms}
        self._socket: WebSocket | None = None
        self._reader: asyncio.Task[None] | None = None  # of the socket
        self._renew: asyncio.Future[None]  # the socket has ended or is about to
        self._reason: TelapiError | None = None  # of the close that follows
        self._max_frame = 1 << 20
        self._last_id = HELLO_ID
        self._pending: dict[int, Pending] = {}
        self._channels: dict[str, Channel] = {}
        self._held: set[str | None] = set()  # channels whose requests wait until those that have failed are repeated
        self._failure: TelapiError | None = None
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> "Runtime":
        """Starts to connect. If the service rejects the runtime, all methods raise TelapiError."""
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Releases all channels and closes the connection."""
        if releases := [asyncio.ensure_future(channel.release()) for channel in self._channels.values()]:
            await asyncio.wait(releases, timeout=RELEASE_TIMEOUT)
        self._fail(TelapiError("CLOSED", "the Runtime is closed"))
        self._task.cancel()
        await asyncio.wait([self._task])

    async def accept(
        self, capacity: int = 1, *, endpoints: Iterable[str] = (), modes: Iterable[str] = (), await_chat: str | None = None, ttl: float = 300.0
    ) -> AsyncGenerator[Channel, None]:
        """Claims sessions, at most capacity at a time. A session counts until its iteration ends or it is released.

        With await_chat, the kind of a provider, the service registers a work item with each chat frame, to be answered
        within ttl seconds: see Entry.work_item.
        """
        await_item = {"kind": await_chat, "ttlMs": round(ttl * 1000)} if await_chat else None
        filters: dict[str, Any] = {"endpoints": list(endpoints), "modes": list(modes), "awaitChat": await_item}
        ready: asyncio.Queue[Channel | Exception] = asyncio.Queue()

        async def claim() -> None:
            try:
                while True:
                    ready.put_nowait(channel := await self._request("accept", **filters))
                    await channel.closed.wait()
            except Exception as error:
                ready.put_nowait(error)

        claims = [asyncio.create_task(claim()) for _ in range(capacity)]
        try:
            while True:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            for task in claims:
                task.cancel()

    async def open(
        self, channel: str, endpoint: str, *, team: str | None = None, mode: str | None = None,
        profile: Mapping[str, Any] | None = None, call_id: str | None = None, transaction_id: str | None = None,
    ) -> Channel:
        """Opens a channel without a browser, such as a phone call, or claims it if it exists."""
        ids = {"team": team, "endpoint": endpoint, "callId": call_id, "transactionId": transaction_id}
        opened: Channel = await self._request("open", channel, mode=mode, profile=profile, **ids)
        return opened

    async def report(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Reports the usage of texts that the runtime synthesized. Each is counted once per id."""
        await self._request("report", reports=[{**report, "id": report.get("id") or str(uuid.uuid4())} for report in reports])

    async def _request(self, op: str, channel: str | None = None, **members: Any) -> Any:
        """Returns the reply; for accept and open, the Channel.

        It waits while the connection or the store is down, and is repeated after a reconnect.
        """
        if self._failure:
            raise self._failure
        self._last_id += 1
        request: dict[str, Any] = {"id": self._last_id, "op": op, "channel": channel, **members}
        frame = encode({name: value for name, value in request.items() if value is not None})
        if len(frame) > self._max_frame:
            raise TelapiError("PAYLOAD_TOO_LARGE", f"{op} has {len(frame)} bytes, more than {self._max_frame}: send less at a time")
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request["id"]] = Pending(op, channel, frame, result)
        try:
            if self._socket and channel not in self._held:
                await self._socket.send(frame)
            return await result
        finally:
            del self._pending[request["id"]]

    def _hold(self, failed: Pending, error: TelapiError) -> None:
        """Repeats a request when the service asks for it, and after it all others of its channel, so that none overtakes another."""
        channel, socket = failed.channel, self._socket

        def repeat() -> None:
            if socket and self._socket is socket:
                self._held.discard(channel)
                for i, pending in enumerate(p for p in self._waiting(channel) if channel or p is failed):
                    socket.write(b'{"retry":true,' + pending.frame[1:] if channel and i == 0 else pending.frame)

        if channel not in self._held:
            self._held |= {channel} - {None}
            asyncio.get_running_loop().call_later((error.details or {}).get("retryAfterMs", 1000) / 1000, repeat)

    def _waiting(self, channel: str | None) -> list[Pending]:
        """Returns the requests on a channel without a reply, oldest first."""
        return [p for p in self._pending.values() if p.channel == channel and not p.result.done()]

    def _forget(self, channel: Channel, error: TelapiError) -> None:
        """Ends the requests on a channel whose claim has ended."""
        if self._channels.get(channel.id) is channel:
            del self._channels[channel.id]
            self._end(error, [p for p in self._waiting(channel.id) if p.op != "open"])

    def _fail(self, error: TelapiError) -> None:
        """Ends all channels and requests, for good."""
        self._failure = self._failure or error
        for channel in list(self._channels.values()):
            channel._close("closed")
        self._end(self._failure, self._pending.values())

    def _end(self, error: Exception, requests: Iterable[Pending]) -> None:
        for pending in requests:
            if not pending.result.done():
                pending.result.set_exception(error)

    async def _run(self) -> None:
        """Keeps the connection open until the service rejects it or the task is cancelled."""
        attempt = 0
        try:
            while True:
                try:
                    await self._connect()
                    attempt = 0
                    await self._renew
                except Exception as error:
                    if failure := permanent(error, self._reason):
                        return self._fail(failure)
                    log.warning("%r; reconnecting", error)
                    if not isinstance(error, (OSError, Closed)) or getattr(error, "code", 0) == INVALID:
                        attempt = max(attempt, 4)  # the service sent an invalid frame and may send it again
                await asyncio.sleep(min(MAX_DELAY, MIN_DELAY * 2**attempt) * random.uniform(0.5, 1))
                attempt += 1
        finally:
            await self._detach()

    async def _detach(self) -> None:
        """Closes the socket and prepares for the next one."""
        if self._reader and self._socket:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            self._socket.close(1000)
        self._socket = self._reader = None
        self._renew = asyncio.get_running_loop().create_future()

    async def _connect(self) -> None:
        """Replaces the socket. The old one, if it is still open, is used until the new one can take over."""
        async with asyncio.timeout(CONNECT_TIMEOUT):
            socket = await WebSocket.open(self._url, self._tls)
            try:
                await socket.handshake(self._url, self._headers, PROTOCOL)
                await self._detach()
                self._attach(socket, await self._greet(socket))
            except BaseException:
                socket.abort()
                raise

    async def _greet(self, socket: WebSocket) -> Any:
        """Sends hello with all claims and returns the reply."""
        claims = [{"channel": c.id, "claim": c.claim, **({"received": c.received} if c.received else {})} for c in self._channels.values()]
        await socket.send(encode({"id": HELLO_ID, "op": "hello", **self._hello, "resume": claims}))
        while (reply := await socket.receive()).get("id") != HELLO_ID:
            self._dispatch(reply)
        if "error" in reply:
            raise from_wire(reply["error"])
        return reply["ok"]

    def _attach(self, socket: WebSocket, welcome: Mapping[str, Any]) -> None:
        """Continues all channels and requests on a new socket. It does not wait, so that nothing comes between."""
        socket.idle = welcome["pingIntervalMs"] / 1000 * 2.5
        self._max_frame = welcome["limits"]["frameBytes"]
        self._hello["previous"] = welcome["connection"]
        resumed = {claim["channel"]: claim for claim in welcome["resumed"]}
        for channel in list(self._channels.values()):
            channel._resume(resumed.get(channel.id))
        for pending in self._pending.values():
            if not pending.result.done():
                socket.write(pending.frame)
        self._socket, self._reason, self._held = socket, None, set()
        self._reader = asyncio.create_task(self._read(socket))

    async def _read(self, socket: WebSocket) -> None:
        try:
            while True:
                self._dispatch(await socket.receive())
        except Exception as error:
            if not self._renew.done():
                self._renew.set_exception(error)

    def _dispatch(self, frame: Mapping[str, Any]) -> None:
        event, channel = frame.get("event"), self._channels.get(frame.get("channel", ""))
        if event is None:
            self._reply(frame)
        elif event == "drain" and not self._renew.done():
            self._renew.set_result(None)
        elif event == "error":
            self._reason = from_wire(frame["error"])
        elif channel and event == "entry":
            channel._push(frame["position"], frame["entry"], frame.get("workItem"))
        elif channel and event == "audio":
            channel._push_audio(frame["message"])
        elif channel and event == "lost":
            channel._lose(frame["at"])
        elif channel and event == "claim_lost" and frame.get("claim", channel.claim) == channel.claim:
            channel._close("claim_lost")

    def _reply(self, frame: Mapping[str, Any]) -> None:
        pending, ok = self._pending.get(frame["id"]), frame.get("ok")
        if not pending or pending.result.done():
            if ok is None:
                log.warning("the service rejected a frame: %s", frame["error"])
            elif "claim" in ok and self._socket and not (ok["channel"] in self._channels or self._waiting(ok["channel"])):  # it was cancelled
                self._socket.write(encode({"id": HELLO_ID, "op": "release", "channel": ok["channel"], "claim": ok["claim"]}))
        elif ok is not None:
            pending.result.set_result(self._claimed(ok) if pending.op in ("accept", "open") else ok)
        elif (error := from_wire(frame["error"])).code == "SERVICE_UNAVAILABLE":
            self._hold(pending, error)
        else:
            pending.result.set_exception(error)

    def _claimed(self, claimed: Mapping[str, Any]) -> Channel:
        known = self._channels.get(claimed["channel"])
        if known and known.claim != claimed["claim"]:
            known._close("claim_lost")
        return self._channels.setdefault(claimed["channel"], Channel(self, claimed))
