"""Entries: order, resume, losses and the end of claims."""

import asyncio
from typing import Any

from scripted import ScriptedTest, claimed, within

from telapi_runtime import Channel, Entry, TelapiError


def resumed(position: str = "", **members: Any) -> dict[str, Any]:
    return {"channel": "ses_1", "position": position, **members}


class CommitTest(ScriptedTest):
    async def test_does_not_wait_and_is_not_overtaken(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", "a")
        (entry,) = await self.entries(channel, 1)
        await within(channel.commit(entry))
        releasing = asyncio.create_task(channel.release())
        await peer.receive("commit")
        peer.reply(await peer.receive("release"))
        await within(releasing)
        with self.assertRaises(TelapiError):
            await channel.commit(entry)


class ResumeTest(ScriptedTest):
    async def test_commit_with_a_lost_reply_is_repeated(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", "a")
        (entry,) = await self.entries(channel, 1)
        committing = asyncio.create_task(channel.commit(entry))
        await peer.receive("commit")
        peer.drop()
        peer = await self.service.connected(resumed())
        peer.reply(await peer.receive("commit"))  # before the entry is pushed again
        await within(committing)

    async def test_claim_that_is_not_resumed_is_lost(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", "a")
        await self.arrived(channel, "1-5")
        peer.drop()
        sending = asyncio.create_task(channel.send("x"))
        await self.service.connected()
        with self.assertRaises(TelapiError) as raised:
            await within(sending)
        self.assertEqual(raised.exception.code, "NOT_FOUND")
        self.assertEqual([entry async for entry in channel], [])
        self.assertEqual(channel.cause, "claim_lost")

    async def test_parts_of_a_streamed_answer(self) -> None:
        peer, channel = await self.claim()
        for number, members in enumerate([{"kind": "llm_part", "text": "a.", "part": 1}, {"kind": "llm_result", "content": "a.", "parts": 1}, {"kind": "llm_result", "content": "b"}], 1):
            peer.push("entry", channel="ses_1", position=f"{number}-1", entry=members)
        entries = await self.entries(channel, 3)
        self.assertEqual([(e.kind, e.text, e.part, e.parts) for e in entries], [("llm_part", "a.", 1, 0), ("llm_result", "a.", 0, 1), ("llm_result", "b", 0, 0)])

    async def test_silent_connection_is_replaced(self) -> None:
        await self.service.connected(ping_ms=20)
        await self.service.connected()

    async def test_invalid_frame_leads_to_a_new_connection(self) -> None:
        peer, channel = await self.claim()
        peer.frame(b'{"event":"entry","channel":"ses_1","position":"1-5"}')
        peer = await self.service.connected(resumed())
        peer.entry("1-5", "a")
        self.assertEqual(await self.texts(channel, 1), ["a"])


class LossTest(ScriptedTest):
    async def test_loss_is_reported_once_and_entries_follow_again(self) -> None:
        peer, channel = await self.claim(lostAt=7)
        peer.entry("1-5", "a")
        peer.entry("2-5", "b")
        peer.entry("3-5", "queued")
        _, second = await self.entries(channel, 2)
        peer.push("lost", channel="ses_1", at=9)
        peer.entry("1-5", "a")
        peer.entry("2-9", "other")
        await self.arrived(channel, "2-9")
        lost, again, other = await self.entries(channel, 3)
        self.assertEqual((lost.kind, lost.position, lost.data["at"]), ("lost", "", 9))
        self.assertEqual((again.text, other.text), ("a", "other"))
        await within(channel.commit(second))  # was lost: nothing to commit
        await within(channel.commit(lost))
        committing = asyncio.create_task(channel.commit(other))
        request = await peer.receive("commit")
        self.assertEqual(request["position"], "2-9")
        peer.reply(request)
        await within(committing)
        peer.drop()
        peer = await self.service.connected(resumed("2-9", lostAt=9))
        peer.push("lost", channel="ses_1", at=9)
        peer.entry("3-9", "next")
        self.assertEqual(await self.texts(channel, 1), ["next"])

    async def test_loss_during_a_reconnect_is_reported(self) -> None:
        peer, channel = await self.claim(position="4-5")
        peer.entry("5-5", "a")
        await self.entries(channel, 1)
        peer.drop()
        peer = await self.service.connected(resumed("3-5", lostAt=9))
        peer.entry("4-9", "new")  # also the commit was lost
        lost, entry = await self.entries(channel, 2)
        self.assertEqual((lost.kind, entry.text), ("lost", "new"))

    async def test_commit_that_a_loss_overtakes_does_not_fail(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", "a")
        (entry,) = await self.entries(channel, 1)
        committing = asyncio.create_task(channel.commit(entry))
        await peer.receive("commit")  # without a reply
        peer.push("lost", channel="ses_1", at=9)
        await within(committing)

    async def test_commit_that_a_loss_overtakes_is_not_repeated(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", "a")
        (entry,) = await self.entries(channel, 1)
        committing = asyncio.create_task(channel.commit(entry))
        await peer.receive("commit")
        peer.drop()
        peer = await self.service.connected(resumed(lostAt=9))
        await within(committing)
        ending = asyncio.create_task(channel.end())
        peer.reply(await peer.receive("end"))
        await within(ending)


class EndTest(ScriptedTest):
    async def test_commit_of_channel_ended_with_a_lost_reply_succeeds(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5", kind="channel_ended")
        (entry,) = await self.entries(channel, 1)
        committing = asyncio.create_task(channel.commit(entry))
        await peer.receive("commit")
        peer.drop()
        await self.service.connected()  # the claim has ended with the commit
        await within(committing)
        self.assertEqual(([entry async for entry in channel], channel.cause), ([], "ended"))

    async def test_claim_lost_ends_iteration_and_requests(self) -> None:
        peer, channel = await self.claim()
        sending = asyncio.create_task(channel.send("x"))
        await peer.receive("send")
        peer.push("claim_lost", channel="ses_1", claim="an earlier claim")
        peer.entry("1-5", "a")
        self.assertEqual(await self.texts(channel, 1), ["a"])
        peer.push("claim_lost", channel="ses_1", claim="secret ses_1")
        with self.assertRaises(TelapiError) as raised:
            await within(sending)
        self.assertEqual(raised.exception.code, "NOT_FOUND")
        self.assertEqual([entry async for entry in channel], [])
        with self.assertRaises(TelapiError):
            await channel.send("y")
        await channel.release()  # has no effect

    async def test_new_claim_of_the_same_channel_replaces_the_old(self) -> None:
        peer, old = await self.claim()
        opening = asyncio.create_task(self.runtime.open("ses_1", "e"))
        peer.reply(await peer.receive("open"), {**claimed(), "claim": "new"})
        new = await within(opening)
        peer.push("claim_lost", channel="ses_1", claim="secret ses_1")
        peer.entry("1-5", "a")
        self.assertEqual(await self.texts(new, 1), ["a"])
        self.assertEqual((old.cause, new.cause), ("claim_lost", ""))

    async def test_channel_is_released_at_the_end_of_its_handler(self) -> None:
        peer = await self.service.connected()
        for raised, suppressed in ((None, True), (TelapiError("CONVERSATION_ENDED", "ended"), True), (ValueError(), False)):
            with self.subTest(raised=raised):
                opening = asyncio.create_task(self.runtime.open("ses_1", "e"))
                peer.reply(await peer.receive("open"), claimed())

                async def handle(channel: Channel) -> None:
                    async with channel:
                        if raised:
                            raise raised

                handling = asyncio.create_task(handle(await within(opening)))
                peer.reply(await peer.receive("release"))
                (done,), _ = await asyncio.wait([handling], timeout=60)
                self.assertEqual(done.exception(), None if suppressed else raised)


class ContentTest(ScriptedTest):
    async def test_audio_is_sent_and_received_without_positions(self) -> None:
        peer, channel = await self.claim()
        self.assertTrue(channel.audio({"data": "AAA="}))
        request = await peer.receive("audio")
        self.assertEqual(request, {"op": "audio", "channel": "ses_1", "claim": "secret ses_1", "message": {"type": "audio", "audio": {"data": "AAA="}}})
        for sequence in range(300):
            peer.push("audio", channel="ses_1", message={"type": "audio", "audio": {"sequence": sequence}})
        peer.entry("1-5", "end")
        received: list[Entry] = []
        while not received or received[-1].kind == "audio":
            received += await self.entries(channel, 1)
        self.assertEqual(received[-2].message["audio"], {"sequence": 299})
        await channel.commit(received[0])

    async def test_audio_is_dropped_when_the_connection_is_slow(self) -> None:
        _, channel = await self.claim()
        async with asyncio.timeout(60):
            while channel.audio({"data": "A" * 50_000}):
                pass

    async def test_numbers_and_payloads_of_any_shape_are_accepted(self) -> None:
        peer, channel = await self.claim()
        digits = b"1" * 10_000
        peer.frame(b'{"event":"entry","channel":"ses_1","position":"1-5","entry":{"kind":"frame","message":{"chat":' + digits + b"}}}")
        peer.frame(b'{"event":"entry","channel":"ses_1","position":"2-5","entry":{"kind":"bot_message","text":"hi"}}')
        peer.frame(b'{"event":"entry","channel":"ses_1","position":"3-5","entry":{"kind":"llm_result","content":"ho"}}')
        self.assertEqual(await self.texts(channel, 3), ["", "hi", "ho"])

    async def test_entry_id_depends_on_position_and_name(self) -> None:
        peer, channel = await self.claim()
        peer.entry("1-5")
        peer.entry("2-5")
        first, second = await self.entries(channel, 2)
        ids = {first.id(), first.id("a"), second.id(), second.id("a")}
        self.assertEqual((len(ids), first.id("a")), (4, first.id("a")))
