"""The WebSocket client against valid and invalid peers."""

import asyncio
import shutil
import ssl
import subprocess
import tempfile
import unittest
from pathlib import Path

from scripted import Peer, Service, within

from telapi_runtime import Runtime
from telapi_runtime.websocket import Closed, WebSocket


class WebSocketTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.service = await self.enterAsyncContext(Service())

    async def connect(self) -> tuple[WebSocket, Peer]:
        socket = await WebSocket.open(self.service.url + "/path", None)
        self.addCleanup(socket.abort)
        shaking = asyncio.create_task(socket.handshake(self.service.url + "/path", {"X-API-Key": "k"}, "p"))
        peer = await self.service.requested()
        peer.upgrade()
        await within(shaking)
        return socket, peer

    async def test_fragments_are_joined_around_a_ping(self) -> None:
        socket, peer = await self.connect()
        text = '{"text":"größer"}'.encode()
        peer.frame(text[:12], 0x01)  # ends within a character
        peer.frame(b"are you there", 0x89)
        peer.frame(text[12:13], 0x00)
        peer.frame(b"", 0x8A)  # a pong that nothing asked for
        peer.frame(text[13:], 0x80)
        self.assertEqual(await within(socket.receive()), {"text": "größer"})
        self.assertEqual(await peer.raw(), (10, b"are you there"))

    async def test_messages_of_all_lengths_are_sent_and_received(self) -> None:
        socket, peer = await self.connect()
        for size in (0, 1, 123, 124, 65_533, 65_534, 200_000):
            text = "x" * size
            peer.frame(f'"{text}"'.encode())
            self.assertEqual(await within(socket.receive()), text)
            await socket.send(text.encode())
            self.assertEqual(await peer.raw(), (1, text.encode()))

    async def test_close_frame_ends_with_its_code(self) -> None:
        for payload, code, reason in ((b"\x11\x94bad key", 4500, "bad key"), (b"", 1005, "")):
            socket, peer = await self.connect()
            peer.frame(payload, 0x88)
            with self.assertRaises(Closed) as closed:
                await within(socket.receive())
            self.assertEqual((closed.exception.code, closed.exception.reason), (code, reason))
            self.assertEqual(await peer.raw(), (8, b"\x03\xe8"))

    async def test_invalid_frames_close_the_connection(self) -> None:
        for name, frame, code in (
            ("masked", b"\x81\x82\0\0\0\0{}", 1002),
            ("reserved bit", b"\xc1\x02{}", 1002),
            ("fragmented ping", b"\x09\x00", 1002),
            ("long ping", b"\x89\x7e\x00\x80" + b"x" * 128, 1002),
            ("binary", b"\x82\x02{}", 1002),
            ("continuation of nothing", b"\x80\x02{}", 1002),
            ("text within a message", b"\x01\x01{\x81\x01}", 1002),
            ("unknown opcode", b"\x83\x00", 1002),
            ("not UTF-8", b"\x81\x03\"\xff\"", 1007),
            ("not JSON", b"\x81\x01{", 1007),
            ("too large", b"\x81\x7f" + (1 << 40).to_bytes(8, "big"), 1009),
        ):
            with self.subTest(name):
                socket, peer = await self.connect()
                peer.writer.write(frame)
                with self.assertRaises(Closed) as closed:
                    await within(socket.receive())
                self.assertEqual(closed.exception.code, 1002)
                self.assertEqual(await peer.raw(), (8, code.to_bytes(2, "big")))

    async def test_lost_connection_is_reported(self) -> None:
        socket, peer = await self.connect()
        peer.writer.write(b"\x81\x05{")
        peer.writer.close()
        with self.assertRaises(Closed) as closed:
            await within(socket.receive())
        self.assertEqual(closed.exception.code, 1006)

    async def test_silence_is_reported(self) -> None:
        socket, _ = await self.connect()
        socket.idle = 0.01
        with self.assertRaises(TimeoutError):
            await within(socket.receive())

    async def test_response_of_another_server_is_rejected(self) -> None:
        for response in (b"hello\r\n\r\n", b"HTTP/1.1 101 OK\r\nSec-WebSocket-Accept: x\r\n\r\n", b"x" * (1 << 17)):
            socket = await WebSocket.open(self.service.url, None)
            self.addCleanup(socket.abort)
            shaking = asyncio.create_task(socket.handshake(self.service.url, {}, "p"))
            peer = await self.service.requested()
            peer.writer.write(response)
            with self.assertRaises(Closed) as closed:
                await within(shaking)
            self.assertEqual(closed.exception.code, 1002)


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class TLSTest(unittest.IsolatedAsyncioTestCase):
    async def test_runtime_connects_with_tls(self) -> None:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        names = "subjectAltName=DNS:localhost"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", names]
        subprocess.run([*command, "-keyout", directory / "key", "-out", directory / "cert"], check=True, capture_output=True)
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(directory / "cert", directory / "key")
        trusting = ssl.create_default_context(cafile=str(directory / "cert"))
        async with Service(served) as service, Runtime(service.url, "tk_key", name="test", tls=trusting) as runtime:
            peer = await service.connected()
            reporting = asyncio.create_task(runtime.report([{"characters": 5}]))
            peer.reply(await peer.receive("report"))
            await within(reporting)
