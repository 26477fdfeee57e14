"""A call runtime that passes chat messages to a bot and speaks for it.

    PORT=8080 python3 examples/bot-python/bot.py
    BOT_URL=http://127.0.0.1:8080/ TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… python3 examples/runtime-python/bot.py
"""
import asyncio
import json
import logging
import os
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime

from telapi_runtime import Channel, Entry, Runtime, TelapiError

URL, KEY, BOT_URL = (os.environ.get(name, "") for name in ("TELAPI_URL", "TELAPI_KEY", "BOT_URL"))
BOT_SECONDS = 30.0  # in which the bot has to answer


def post(work: Mapping[str, object]) -> None:
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(BOT_URL, json.dumps(work).encode(), headers), timeout=10).close()


async def ask(channel: Channel, entry: Entry) -> None:
    """Registers a work item, and tells the bot where to post its answer."""
    item = await channel.expect("bot", ttl=BOT_SECONDS, work_item_id=entry.id(), entry=entry)
    expires = datetime.fromtimestamp(item.deadline / 1000, UTC).isoformat()
    callback = {"url": item.url, "token": item.token, "expiresAt": expires}
    work = {"kind": "bot", "channelId": channel.id, "workItemId": item.id, "text": entry.text, "callback": callback}
    try:
        await asyncio.to_thread(post, work)
    except OSError as error:  # no response, or not a successful one
        logging.warning("bot: %s", error)
        await channel.cancel(item)
        await channel.send("The bot is not available.", sender="runtime", message_id=entry.id("unavailable"))


async def handle(channel: Channel, entry: Entry) -> None:
    command = entry.data.get("command", {}).get("type")
    if entry.kind == "frame" and entry.text:
        await ask(channel, entry)
    elif entry.kind == "bot_message":
        await channel.send(entry.text, message_id=entry.id())
    elif entry.kind in ("timeout", "provider_error"):
        await channel.send("The bot did not answer. Try again.", sender="runtime", message_id=entry.id())
    elif entry.kind == "command" and command == "transfer":
        target = entry.data["command"].get("target", "an agent")
        await channel.send(f"You are being transferred to {target}.", sender="runtime", message_id=entry.id())
        await channel.end("transferred")
    elif entry.kind == "command" and command == "hangup":
        await channel.end(entry.data["command"].get("reason", "the bot hung up"))


async def serve(channel: Channel) -> None:
    try:
        async with channel:
            async for entry in channel:
                await handle(channel, entry)
                await channel.commit(entry)
    except Exception:
        logging.exception("channel %s", channel.id)  # the other calls go on


async def main() -> None:
    async with Runtime(URL, KEY, name="bot-python") as runtime, asyncio.TaskGroup() as calls:
        print("connecting to", URL, flush=True)
        async for channel in runtime.accept(capacity=100):
            calls.create_task(serve(channel))


if not (URL and KEY and BOT_URL):
    sys.exit("Set TELAPI_URL, such as http://localhost:3001, TELAPI_KEY, an API key with the scope RUN_CALLS, and BOT_URL.")
failures: tuple[BaseException, ...] = ()
try:
    asyncio.run(main())
except* KeyboardInterrupt:
    pass
except* (TelapiError, ValueError) as errors:  # the service rejected the runtime, or a setting is invalid
    failures = errors.exceptions
if failures:
    sys.exit("\n".join(map(str, failures)))
