"""A scripted service: each test plays the service's side of the protocol, frame by frame."""

import asyncio
import base64
import hashlib
import json
import logging
import ssl
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from telapi_runtime import Channel, Entry, Runtime  # noqa: E402

LIMIT = 60.0  # of every wait
logging.disable()  # reconnects are expected here


class Peer:
    """The service's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.headers: dict[str, str] = {}
        self.path = ""

    async def read_request(self) -> None:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.path = lines[0].split(" ")[1]
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}

    def upgrade(self) -> None:
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-Websocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {self.headers['sec-websocket-protocol']}\r\n\r\n".encode()
        )

    def reject(self, status: int, body: str) -> None:
        self.writer.write(f"HTTP/1.1 {status} Rejected\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    def frame(self, payload: bytes, head: int = 0x81) -> None:
        """Sends a frame. Head is its first byte: final, and the opcode."""
        size = len(payload)
        length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big") if size < 65536 else b"\x7f" + size.to_bytes(8, "big")
        self.writer.write(bytes([head]) + length + payload)

    def push(self, event: str, **members: Any) -> None:
        self.frame(json.dumps({"event": event, **members}).encode())

    def entry(self, position: str, text: str = "", kind: str = "frame", channel: str = "ses_1") -> None:
        data = {"kind": kind, "channelId": channel, "at": 1, "message": {"type": "chat", "chat": {"text": text}}}
        self.push("entry", channel=channel, position=position, entry=data)

    def reply(self, request: dict[str, Any], ok: Any = None, error: Any = None) -> None:
        self.frame(json.dumps({"id": request["id"], **({"error": error} if error else {"ok": ok or {}})}).encode())

    def close(self, code: int) -> None:
        self.frame(code.to_bytes(2, "big"), 0x88)

    def drop(self) -> None:
        self.writer.transport.abort()

    async def raw(self) -> tuple[int, bytes]:
        """Returns opcode and payload of the next frame."""
        async with asyncio.timeout(LIMIT):
            first, second = await self.reader.readexactly(2)
            assert first & 0xF0 == 0x80 and second & 0x80, "frames of clients are masked, and not fragmented here"
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
            mask, payload = await self.reader.readexactly(4), await self.reader.readexactly(size)
            return first & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))

    async def receive(self, op: str) -> dict[str, Any]:
        """Returns the next request, which has this operation."""
        opcode, payload = await self.raw()
        request: dict[str, Any] = json.loads(payload) if opcode == 1 else {"op": f"opcode {opcode}: {payload!r}"}
        assert request["op"] == op, f"received {request}, want {op}"
        return request

    async def welcome(self, *resumed: dict[str, Any], ping_ms: int = 10_000, frame_bytes: int = 1 << 20) -> dict[str, Any]:
        """Returns hello and replies to it."""
        hello = await self.receive("hello")
        limits = {"frameBytes": frame_bytes}
        self.reply(hello, {"instance": "i1", "connection": "c1", "resumed": list(resumed), "pingIntervalMs": ping_ms, "limits": limits})
        return hello


class Service:
    """Listens for connections. Tests take them with upgraded or connected."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.all: list[Peer] = []

    async def __aenter__(self) -> "Service":
        self.server = await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self.tls)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://localhost:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for peer in self.all:
            peer.drop()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.all.append(peer)
        await peer.read_request()
        self.peers.put_nowait(peer)

    async def requested(self) -> Peer:
        """Returns the next connection, before the upgrade."""
        async with asyncio.timeout(LIMIT):
            return await self.peers.get()

    async def connected(self, *resumed: dict[str, Any], **welcome: Any) -> Peer:
        """Returns the next connection, after hello."""
        peer = await self.requested()
        peer.upgrade()
        await peer.welcome(*resumed, **welcome)
        return peer


def claimed(channel: str = "ses_1", position: str = "", **members: Any) -> dict[str, Any]:
    return {"channel": channel, "claim": "secret " + channel, "team": "t", "endpoint": "e", "position": position, **members}


class ScriptedTest(unittest.IsolatedAsyncioTestCase):
    """A test with a service, a runtime, and one session that it has accepted if claim is called."""

    async def asyncSetUp(self) -> None:
        self.service = await self.enterAsyncContext(Service())
        self.runtime = await self.enterAsyncContext(Runtime(self.service.url, "tk_key", name="test"))

    async def asyncTearDown(self) -> None:
        for peer in self.service.all:
            peer.drop()
        self.service.server.close()
        self.runtime._fail(RuntimeError("the test has ended"))  # type: ignore[arg-type]

    async def claim(self, **members: Any) -> tuple[Peer, Channel]:
        peer = await self.service.connected()
        opening = asyncio.create_task(self.runtime.open("ses_1", "e"))
        peer.reply(await peer.receive("open"), claimed(**members))
        return peer, await within(opening)

    async def entries(self, channel: Channel, count: int) -> list[Entry]:
        return [await within(channel.__anext__()) for _ in range(count)]

    async def arrived(self, channel: Channel, position: str) -> None:
        """Waits until an entry is queued."""
        async with asyncio.timeout(LIMIT):
            while channel.received != position:
                await asyncio.sleep(0)

    async def texts(self, channel: Channel, count: int) -> list[str]:
        return [entry.text for entry in await self.entries(channel, count)]


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(LIMIT):
        return await awaitable
