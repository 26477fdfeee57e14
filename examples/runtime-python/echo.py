"""A call runtime that sends every chat message back.

    pip install ./sdk/python      # offline: export PYTHONPATH=sdk/python
    TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… python3 examples/runtime-python/echo.py
"""
import asyncio
import os
import sys

from telapi_runtime import Channel, Runtime, TelapiError

URL, KEY = (os.environ.get(name, "") for name in ("TELAPI_URL", "TELAPI_KEY"))


async def echo(channel: Channel) -> None:
    async with channel:
        async for entry in channel:
            if entry.kind == "frame" and entry.text:
                await channel.send(entry.text, message_id=entry.id())
            await channel.commit(entry)


async def main() -> None:
    async with Runtime(URL, KEY, name="echo-python") as runtime, asyncio.TaskGroup() as calls:
        print("connecting to", URL, flush=True)
        async for channel in runtime.accept(capacity=100):
            calls.create_task(echo(channel))


if not (URL and KEY):
    sys.exit("Set TELAPI_URL, such as http://localhost:3001, and TELAPI_KEY, an API key with the scope RUN_CALLS.")
failures: tuple[BaseException, ...] = ()
try:
    asyncio.run(main())
except* KeyboardInterrupt:
    pass
except* (TelapiError, ValueError) as errors:  # the service rejected the runtime, or a setting is invalid
    failures = errors.exceptions
if failures:
    sys.exit("\n".join(map(str, failures)))
