"""What only this library has. The scenarios of all libraries are in test/libraries."""

import asyncio
import unittest

from scripted import ScriptedTest, claimed, within

from telapi_runtime import Runtime, TelapiError


class RequestTest(ScriptedTest):
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
        await peer.receive("accept")
        await accepted.aclose()


class ArgumentTest(unittest.TestCase):
    def test_invalid_url_and_key_are_rejected(self) -> None:
        for url, key in (("localhost:3001", "tk_key"), ("ftp://x", "tk_key"), ("http://x", ""), ("http://x", "tk_key\n")):
            with self.assertRaises(ValueError):
                Runtime(url, key, name="test")
