"""Obeys the commands of scenarios.txt: each line of the input is a command, and each line of the output a result."""
import asyncio
import json
import sys
import traceback
from typing import Any

from telapi_runtime import Channel, Entry, Runtime, TelapiError, WorkItem

CAUSES = {"ended": "ENDED", "released": "CLOSED", "closed": "CLOSED", "claim_lost": "CLAIM_LOST"}


def describe(item: WorkItem) -> dict[str, Any]:
    return {"workItemId": item.id, "token": item.token, "url": item.url, "deadline": item.deadline}


class Driver:
    """A runtime and its channels, by name."""

    def __init__(self) -> None:
        self.runtime: Runtime
        self.channels: dict[str, Channel] = {}
        self.entries: dict[str, Entry] = {}

    async def run(self, do: str, channel: str, arg: str) -> Any:
        match do:
            case "start":
                options = json.loads(arg)
                resume = {"resume_ms": options["resumeMs"]} if "resumeMs" in options else {}
                self.runtime = await Runtime(options["url"], options["key"], name=options["name"], **resume).__aenter__()
                return None
            case "close":
                return await self.runtime.__aexit__()
            case "report":
                return await self.runtime.report([{"characters": 1}])
            case "open" | "accept":
                accepting = self.runtime.accept(await_chat=arg or None, ttl=30)
                opened = await (self.runtime.open(arg.split()[0], "e") if do == "open" else anext(accepting))
                self.channels[channel] = opened
                return {"channel": opened.id, "team": opened.info["team"]}
        return await self.use(self.channels[channel], do, channel, arg)

    async def use(self, channel: Channel, do: str, name: str, arg: str) -> Any:
        try:
            match do:
                case "receive":
                    entry = await anext(channel)
                    self.entries[name + entry.position] = entry
                    return {"kind": entry.kind, "position": entry.position, "workItem": entry.work_item and describe(entry.work_item)}
                case "commit":
                    await channel.commit(self.entries[name + arg])
                case "await":
                    return describe(await channel.expect(work_item_id=arg))
                case _:
                    await getattr(channel, do)(*([arg] if arg else []))
            return None
        except (TelapiError, StopAsyncIteration) as error:
            if channel.cause:
                raise TelapiError(CAUSES.get(channel.cause, ""), str(error)) from error
            raise


async def main() -> None:
    drivers: dict[str, Driver] = {}
    tasks: dict[str, asyncio.Task[None]] = {}

    async def run(command: dict[str, Any]) -> None:
        result: dict[str, Any] = {"id": command["id"]}
        try:
            driver = drivers.setdefault(command["runtime"], Driver())
            result["ok"] = await driver.run(command["do"], command["channel"], command["arg"])
        except asyncio.CancelledError:
            result["error"] = "CANCELLED"
        except TelapiError as error:
            result |= {"error": error.code, "message": error.message}
        except Exception:
            result |= {"error": "OTHER", "message": traceback.format_exc()}
        print(json.dumps(result), flush=True)

    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if command["do"] == "abandon":
            tasks[command["arg"]].cancel()
        else:
            tasks[str(command["id"])] = asyncio.create_task(run(command))


asyncio.run(main())
