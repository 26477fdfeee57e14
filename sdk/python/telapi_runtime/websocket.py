"""A WebSocket client (RFC 6455) for JSON messages on asyncio streams."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

CONTINUATION, TEXT, CLOSE, PING, PONG = 0, 1, 8, 9, 10
MAX_MESSAGE = 16 << 20
MAX_REJECTION = 64 << 10
MAX_DIGITS = 4000  # longer integers become floats, because Python refuses to parse them
CLOSE_TIMEOUT = 5.0  # in which buffered frames are sent
ACCEPT_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
NO_CODE, LOST, INVALID = 1005, 1006, 1002  # close codes


def encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode(text: str) -> Any:
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else float(digits))


class Closed(Exception):
    """The connection ended.

    Code is that of the peer's close frame; LOST; INVALID if the peer violated the protocol;
    or an HTTP status if the peer rejected the handshake. Then reason is the body.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"connection closed: {code} {reason}".rstrip())
        self.code, self.reason = code, reason


class WebSocket:
    """An open connection. One task may call receive; any task may write."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = bytearray()
        self.idle: float | None = None  # receive raises TimeoutError when no byte arrives for this many seconds

    @classmethod
    async def open(cls, url: str, tls: ssl.SSLContext | None) -> "WebSocket":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port or (443 if tls else 80), ssl=tls))

    async def handshake(self, url: str, headers: Mapping[str, str], protocol: str) -> None:
        """Upgrades the connection. The URL has no query."""
        parts, key = urlsplit(url), base64.b64encode(os.urandom(16)).decode()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
        fields = {"Host": parts.netloc, **headers, **upgrade, "Sec-WebSocket-Protocol": protocol}
        lines = [f"GET {parts.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        try:
            status, *answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            code = int(status.split(" ")[1])
        except (EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise Closed(INVALID, "invalid response to the handshake") from error
        got = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in answer)}
        if code != 101:
            size = got.get("content-length", "")
            body = await self._reader.readexactly(min(int(size), MAX_REJECTION) if size.isdecimal() else 0)
            raise Closed(code, body.decode(errors="replace"))
        expected = base64.b64encode(hashlib.sha1((key + ACCEPT_GUID).encode()).digest()).decode()
        if got.get("sec-websocket-accept") != expected or got.get("sec-websocket-protocol") != protocol:
            raise Closed(INVALID, "the server does not speak " + protocol)

    async def receive(self) -> Any:
        """Returns the next message and answers pings. It raises Closed or OSError at the end."""
        message, started = bytearray(), False
        while True:
            final, opcode, payload = await self._frame(MAX_MESSAGE - len(message))
            if opcode == PING:
                await self.send(payload, PONG)
            elif opcode == CLOSE:
                self.close(1000)
                code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else NO_CODE
                raise Closed(code, payload[2:].decode(errors="replace"))
            elif opcode in (TEXT, CONTINUATION) and started == (opcode == CONTINUATION):
                message, started = message + payload, True
                if final:
                    try:
                        return decode(message.decode())
                    except ValueError as error:
                        self.fail(1007, f"invalid message: {error}")
            elif opcode != PONG:
                self.fail(INVALID, f"unexpected frame with opcode {opcode}")

    async def _frame(self, limit: int) -> tuple[bool, int, bytes]:
        first, second = await self._read(2)
        final, opcode, length = bool(first & 0x80), first & 0x0F, second & 0x7F
        if first & 0x70 or second & 0x80 or opcode >= CLOSE and (length > 125 or not final):
            self.fail(INVALID, "invalid frame header")
        if length > 125:
            length = int.from_bytes(await self._read(2 if length == 126 else 8), "big")
        if length > limit:
            self.fail(1009, "message too large")
        return final, opcode, await self._read(length)

    async def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            async with asyncio.timeout(self.idle):
                data = await self._reader.read(1 << 16)
            if not data:
                raise Closed(LOST, "connection lost")
            self._buffer += data
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def send(self, payload: bytes, opcode: int = TEXT) -> None:
        """Sends a frame and waits while too much is buffered. Only receive reports a lost connection."""
        self.write(payload, opcode)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def write(self, payload: bytes, opcode: int = TEXT) -> None:
        """Buffers a frame. Frames are sent in the order of the calls."""
        size, mask = len(payload), os.urandom(4)
        width = 0 if size < 126 else 2 if size < 1 << 16 else 8  # of the extended length
        head = bytes((0x80 | opcode, 0x80 | {0: size, 2: 126, 8: 127}[width])) + (size.to_bytes(width, "big") if width else b"")
        masks = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(masks, "big")).to_bytes(size, "big")
        if not self._writer.is_closing():
            self._writer.write(head + mask + masked)

    def buffered(self) -> int:
        """Returns the number of bytes that are not sent yet."""
        return self._writer.transport.get_write_buffer_size()

    def fail(self, code: int, reason: str) -> NoReturn:
        """Closes the connection because the peer violated the protocol."""
        self.close(code)
        raise Closed(INVALID, reason)

    def close(self, code: int) -> None:
        """Closes the connection when all frames and a close frame are sent."""
        self.write(code.to_bytes(2, "big"), CLOSE)
        self._writer.close()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self.abort)

    def abort(self) -> None:
        self._writer.transport.abort()
