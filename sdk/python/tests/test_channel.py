"""What only this library has. The scenarios of all libraries are in test/libraries."""

import asyncio

from scripted import ScriptedTest, claimed, within

from telapi_runtime import Channel, Entry, TelapiError


class HandlerTest(ScriptedTest):
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
    async def test_parts_of_a_streamed_answer(self) -> None:
        peer, channel = await self.claim()
        for number, members in enumerate([{"kind": "llm_part", "text": "a.", "part": 1}, {"kind": "llm_result", "content": "a.", "parts": 1}, {"kind": "llm_result", "content": "b"}], 1):
            peer.push("entry", channel="ses_1", position=f"{number}-1", entry=members)
        entries = await self.entries(channel, 3)
        self.assertEqual([(e.kind, e.text, e.part, e.parts) for e in entries], [("llm_part", "a.", 1, 0), ("llm_result", "a.", 0, 1), ("llm_result", "b", 0, 0)])

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
