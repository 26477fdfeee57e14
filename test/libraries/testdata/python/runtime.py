"""The runtime of the test that all libraries share. It obeys chat messages and prints what it receives."""
import asyncio
import contextlib
import json
import os
import signal
from typing import Any

from telapi_runtime import Channel, Entry, Runtime


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def obey(channel: Channel, entry: Entry) -> None:
    """Handles a chat message."""
    command, _, argument = entry.text.partition(" ")
    if command == "say":
        await channel.send(argument, message_id=entry.id())
    elif entry.text in ("ask", "short"):
        ttl = 60.0 if command == "ask" else 0.3
        item = await channel.expect("tool", ttl=ttl, scope="item", work_item_id=entry.id("item"), entry=entry)
        await channel.send(compact({"workItemId": item.id, "token": item.token, "url": item.url}), message_id=entry.id())
    elif entry.text == "end":
        await channel.end("bye")
    else:
        await channel.send(entry.text, message_id=entry.id())


async def serve(channel: Channel) -> None:
    async with channel:
        async for entry in channel:
            if entry.kind == "lost":
                print("lost", channel.id, flush=True)
                continue
            print("entry", channel.id, entry.position, entry.kind, entry.text, flush=True)
            if entry.kind == "frame" and entry.message.get("type") == "chat":
                await obey(channel, entry)
            elif entry.kind == "tool_result":
                await channel.send("result " + compact(entry.data.get("result")), message_id=entry.id())
            elif entry.kind == "timeout":
                await channel.send("timeout", message_id=entry.id())
            await channel.commit(entry)


async def main() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    url, key, name = (os.environ["TELAPI_" + variable] for variable in ("URL", "KEY", "NAME"))
    async with Runtime(url, key, name=name, resume_ms=int(os.environ.get("TELAPI_RESUME_MS", "2000"))) as runtime:
        async with asyncio.TaskGroup() as calls:
            async for channel in runtime.accept(capacity=8):
                calls.create_task(serve(channel))


with contextlib.suppress(asyncio.CancelledError):
    asyncio.run(main())
