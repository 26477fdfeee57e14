"""Connect, reconnect and requests."""

import asyncio
import unittest

from scripted import ScriptedTest, Service, claimed, within

from telapi_runtime import Runtime, TelapiError


class ConnectTest(ScriptedTest):
    async def test_rejection_ends_the_runtime(self) -> None:
        (await self.service.requested()).reject(401, '{"error":{"code":"UNAUTHORIZED","message":"Unknown key."}}')
        await self.assert_ended("UNAUTHORIZED")
        async with Runtime(self.service.url, "tk_key", name="test") as self.runtime:
            (await self.service.requested()).reject(404, "<html>")
            await self.assert_ended("HANDSHAKE_REJECTED")

    async def test_unavailable_service_is_tried_again(self) -> None:
        for status in (429, 500, 503):
            (await self.service.requested()).reject(status, "")
        (await self.service.requested()).drop()
        await self.service.connected()

    async def test_error_and_close_code_end_the_runtime(self) -> None:
        peer = await self.service.requested()
        peer.upgrade()
        await peer.receive("hello")
        peer.push("error", error={"code": "FORBIDDEN", "message": "The key was revoked."})
        peer.close(4500)
        await self.assert_ended("FORBIDDEN")

    async def test_rejected_hello_ends_the_runtime(self) -> None:
        peer = await self.service.requested()
        peer.upgrade()
        peer.reply(await peer.receive("hello"), error={"code": "VALIDATION_ERROR", "message": "name is too long", "details": [1]})
        self.assertEqual((await self.assert_ended("VALIDATION_ERROR")).details, [1])

    async def test_hello_is_repeated_while_the_store_is_down(self) -> None:
        peer = await self.service.requested()
        peer.upgrade()
        peer.reply(await peer.receive("hello"), error={"code": "SERVICE_UNAVAILABLE", "message": "store"})
        await self.service.connected()

    async def assert_ended(self, code: str) -> TelapiError:
        with self.assertRaises(TelapiError) as raised:
            await within(self.runtime.open("ses_1", "e"))
        self.assertEqual(raised.exception.code, code)
        self.assertTrue(self.service.peers.empty())
        return raised.exception


class CloseCodeTest(unittest.IsolatedAsyncioTestCase):
    async def test_runtime_ends_after_permanent_close_codes(self) -> None:
        for code in (1007, 1008, 1009, 4500, 4501, 4999):
            with self.subTest(code):
                async with Service() as service, Runtime(service.url, "tk_key", name="test") as runtime:
                    (await service.connected()).close(code)
                    with self.assertRaises(TelapiError) as raised:
                        await within(runtime.open("ses_1", "e"))
                    self.assertEqual((raised.exception.code, raised.exception.details), ("CONNECTION_CLOSED", {"closeCode": code}))

    async def test_runtime_reconnects_after_other_close_codes(self) -> None:
        for code in (1000, 1001, 1011, 1012, 4001, 4002, 4499):
            with self.subTest(code):
                async with Service() as service, Runtime(service.url, "tk_key", name="test"):
                    (await service.connected()).close(code)
                    await service.connected()


class RequestTest(ScriptedTest):
    async def test_request_waits_until_the_store_is_back(self) -> None:
        peer, channel = await self.claim()
        sending = [asyncio.create_task(channel.send(text)) for text in ("a", "b")]
        first, second = await peer.receive("send"), await peer.receive("send")
        peer.reply(first, error={"code": "SERVICE_UNAVAILABLE", "message": "store"})  # the reply to the second comes late
        reporting = asyncio.create_task(self.runtime.report([{"characters": 5}]))
        peer.reply(await peer.receive("report"))  # it does not wait
        await within(reporting)
        sending.append(asyncio.create_task(channel.send("c")))
        repeated = [await peer.receive("send") for _ in range(3)]
        self.assertEqual(repeated[:2], [{"retry": True, **first}, second])
        self.assertEqual([request["messages"][0]["chat"]["text"] for request in repeated], ["a", "b", "c"])
        self.assertNotIn("retry", repeated[2])
        for request in repeated:
            peer.reply(request, {"messageIds": []})
        await within(asyncio.gather(*sending))

    async def test_request_beyond_the_frame_limit_is_not_sent(self) -> None:
        peer, channel = await self.claim()
        with self.assertRaises(TelapiError) as raised:
            await within(channel.send("x" * (1 << 20)))
        self.assertEqual(raised.exception.code, "PAYLOAD_TOO_LARGE")
        peer.drop()
        await self.service.connected({"channel": "ses_1", "position": ""})

    async def test_work_item_is_registered_and_cancelled(self) -> None:
        peer, channel = await self.claim()
        peer.push("entry", channel="ses_1", position="1-1", entry={"kind": "frame", "trace": {"traceId": "t"}})
        (entry,) = await self.entries(channel, 1)
        expecting = asyncio.create_task(channel.expect("tool", ttl=0.3, work_item_id=entry.id("ask"), entry=entry))
        request = await peer.receive("await")
        item = {"workItemId": request["workItemId"], "token": "cbt_x", "url": "http://x/", "deadline": 5}
        wanted = {"kind": "tool", "scope": "item", "ttlMs": 300, "trace": {"traceId": "t"}, "workItemId": entry.id("ask"), "claim": channel.claim}
        self.assertEqual({name: request[name] for name in wanted}, wanted)
        peer.reply(request, item)
        expected = await within(expecting)
        self.assertEqual((expected.id, expected.token, expected.url, expected.deadline), (entry.id("ask"), "cbt_x", "http://x/", 5))
        cancelling = asyncio.create_task(channel.cancel(expected))
        request = await peer.receive("cancel")
        self.assertEqual(request["workItemId"], expected.id)
        peer.reply(request)
        await within(cancelling)

    async def test_report_gets_an_id_before_it_is_sent(self) -> None:
        peer = await self.service.connected()
        reporting = asyncio.create_task(self.runtime.report([{"characters": 5}]))
        first = await peer.receive("report")
        peer.drop()
        peer = await self.service.connected()
        second = await peer.receive("report")
        self.assertTrue(first["reports"][0]["id"])
        self.assertEqual(second, first)
        peer.reply(second)
        await within(reporting)

    async def test_closed_runtime_releases_its_channels(self) -> None:
        peer, channel = await self.claim()
        closing = asyncio.create_task(self.runtime.__aexit__())
        peer.reply(await peer.receive("release"))
        self.assertEqual(await peer.raw(), (8, b"\x03\xe8"))
        await within(closing)
        self.assertEqual([entry async for entry in channel], [])
        with self.assertRaises(TelapiError) as raised:
            await self.runtime.open("ses_1", "e")
        self.assertEqual(raised.exception.code, "CLOSED")


class AcceptTest(ScriptedTest):
    async def test_capacity_bounds_claims_and_outstanding_accepts(self) -> None:
        accepted = self.runtime.accept(2, endpoints=["e1"])
        next_channel = asyncio.ensure_future(anext(accepted))
        peer = await self.service.connected()
        first, second = await peer.receive("accept"), await peer.receive("accept")
        self.assertEqual(first["endpoints"], ["e1"])
        peer.reply(second, claimed("ses_2"))
        channel = await within(next_channel)
        self.assertEqual((channel.id, channel.info["team"]), ("ses_2", "t"))
        releasing = asyncio.create_task(channel.release())
        peer.reply(await peer.receive("release"))  # no accept before it
        await within(releasing)
        last = await peer.receive("accept")
        peer.reply(last, error={"code": "SERVICE_UNAVAILABLE", "message": "later", "details": {"retryAfterMs": 1500}})
        rejected = asyncio.get_running_loop().time()
        repeated = await peer.receive("accept")
        self.assertNotIn("retry", repeated)  # it is about a channel
        self.assertGreater(asyncio.get_running_loop().time() - rejected, 1.4)
        await accepted.aclose()

    async def test_channel_that_is_opened_again_is_kept(self) -> None:
        opening = asyncio.create_task(self.runtime.open("ses_1", "e"))
        peer = await self.service.connected()
        cancelled = await peer.receive("open")
        opening.cancel()
        await asyncio.wait([opening])
        again = asyncio.create_task(self.runtime.open("ses_1", "e"))
        request = await peer.receive("open")
        claimed = {"channel": "ses_1", "claim": "secret", "position": ""}
        peer.reply(cancelled, claimed)
        peer.reply(request, claimed)
        channel = await within(again)
        ending = asyncio.create_task(channel.end())
        peer.reply(await peer.receive("end"))  # no release comes before
        await within(ending)

    async def test_session_that_arrives_after_a_cancelled_accept_is_released(self) -> None:
        opening = asyncio.create_task(self.runtime.open("ses_1", "e"))
        peer = await self.service.connected()
        request = await peer.receive("open")
        opening.cancel()
        await asyncio.wait([opening])
        peer.reply(request, claimed())
        self.assertEqual((await peer.receive("release"))["channel"], "ses_1")

    async def test_rejection_is_raised(self) -> None:
        next_channel = asyncio.ensure_future(anext(self.runtime.accept()))
        peer = await self.service.connected()
        peer.reply(await peer.receive("accept"), error={"code": "RATE_LIMIT_EXCEEDED", "message": "too many"})
        with self.assertRaises(TelapiError):
            await within(next_channel)


class ArgumentTest(unittest.TestCase):
    def test_invalid_url_and_key_are_rejected(self) -> None:
        for url, key in (("localhost:3001", "tk_key"), ("ftp://x", "tk_key"), ("http://x", ""), ("http://x", "tk_key\n")):
            with self.assertRaises(ValueError):
                Runtime(url, key, name="test")
