"""A call runtime that sends every chat message back.

    pip install ./sdk/python      # offline: export PYTHONPATH=sdk/python
    TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… python3 examples/runtime-python/echo.py
"""
import asyncio
import os

from telapi_runtime import Channel, Runtime


async def echo(channel: Channel) -> None:
    async with channel:
        async for entry in channel:
            if entry.kind == "frame" and entry.text:
                await channel.send(entry.text, message_id=entry.id())
            await channel.commit(entry)


async def main() -> None:
    async with Runtime(os.environ["TELAPI_URL"], os.environ["TELAPI_KEY"], name="echo-python") as runtime, asyncio.TaskGroup() as calls:
        print("ready: waiting for calls of", os.environ["TELAPI_URL"], flush=True)
        async for channel in runtime.accept(capacity=8):
            calls.create_task(echo(channel))

asyncio.run(main())
