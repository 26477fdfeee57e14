"""Channels: the entries of a call, and what a runtime does with them."""

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import TelapiError
from .websocket import encode

if TYPE_CHECKING:
    from .runtime import Runtime

MAX_AUDIO = 256  # queued audio frames of a channel; the oldest is dropped first
MAX_AUDIO_BACKLOG = 256 << 10  # bytes that are not sent yet; above, audio is dropped
NAMESPACE = uuid.UUID("6f9e2f0a-5f0d-4f8b-9a52-0f3f2c1c7a51")  # of Entry.id


def number(position: str) -> int:
    """Returns the number of the entry at a position. The first entry of a channel is 1."""
    return int(position.partition("-")[0] or 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a channel's stream. Data is its JSON object.

    Two kinds have no position, and committing them has no effect. audio is an audio frame
    of the browser. lost reports that the store lost data: entries that were not committed
    follow again, and work items may be missing.
    """

    channel: str
    position: str
    kind: str
    data: dict[str, Any]
    losses: int = field(default=0, repr=False)  # of the channel, before the entry
    part: int = 0  # of the kinds llm_part and bot_message: number of the sentence of a streamed answer, from 1 on
    parts: int = 0  # of the entry that ends a streamed answer: how many parts came before
    work_item: "WorkItem | None" = None  # of a chat frame, if accept asked for one and it was registered

    @property
    def message(self) -> dict[str, Any]:
        """The browser's message, of the kinds frame and audio."""
        return self.data.get("message") or {}

    @property
    def text(self) -> str:
        """The text of a chat message, of a bot's message, or of a language model's answer or part of it."""
        chat = self.message.get("chat")
        found = chat.get("text") if isinstance(chat, dict) else self.data.get("text", self.data.get("content"))
        return found if isinstance(found, str) else ""

    def id(self, name: str = "") -> str:
        """Returns an ID for a message or work item that is caused by the entry.

        It is the same when the entry is handled again, so that nothing is sent twice. Name
        tells several messages or work items of one entry apart.
        """
        return str(uuid.uuid5(NAMESPACE, f"{self.channel} {self.position} {name}"))


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A result that a provider will post to url, with the header token."""

    id: str
    token: str = field(repr=False)
    url: str
    deadline: int  # Unix milliseconds


def work_item(data: Mapping[str, Any]) -> WorkItem:
    """Returns the work item that the service describes."""
    return WorkItem(data["workItemId"], data["token"], data["url"], data["deadline"])


class Channel:
    """A channel that the runtime has claimed. Iterate over it to receive its entries.

    The iteration ends after channel_ended, release or a lost claim, or when the Runtime is
    closed; cause tells which. Commit entries: at most 256 arrive without. Use the channel
    with async with, so that it is released when its handler is done or fails.
    """

    def __init__(self, runtime: "Runtime", claimed: Mapping[str, Any]) -> None:
        self.id: str = claimed["channel"]
        self.info = claimed  # the reply of accept: team, endpoint, mode, session, profile and more
        self.work_items: list[dict[str, Any]] = claimed.get("workItems") or []  # open ones, at the claim or reconnect
        self.cause = ""  # why the iteration ends: ended, released, claim_lost or closed
        self.closed = asyncio.Event()  # set with cause
        self.claim: str = claimed["claim"]
        self.received: str = claimed["position"]  # the newest entry that was queued
        self._runtime = runtime
        self._lost_at: int = claimed.get("lostAt", 0)
        self._losses, self._at_end = 0, False
        self._queue: deque[Entry] = deque()
        self._audio: deque[Entry] = deque(maxlen=MAX_AUDIO)
        self._committing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # replaced whenever it is set

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Releases the channel. It suppresses the errors of requests that came after the end of the call or the claim."""
        if not isinstance(error, asyncio.CancelledError):
            await self.release()
        return isinstance(error, TelapiError) and error.code in ("CONVERSATION_ENDED", "NOT_FOUND")

    def __aiter__(self) -> "Channel":
        return self

    async def __anext__(self) -> Entry:
        if self._at_end:
            self._close("ended")
        while not self.cause:
            if queue := self._audio or self._queue:
                entry = queue.popleft()
                self._at_end = entry.kind == "channel_ended"
                return entry
            await self._changed.wait()
        raise StopAsyncIteration

    async def commit(self, entry: Entry) -> None:
        """Marks the entry and all earlier ones as handled. A later claim continues after it.

        It does not wait for the service, except for channel_ended.
        """
        if entry.position and entry.losses == self._losses and self.cause != "ended":
            if self.cause:
                raise self._unclaimed()
            committing = asyncio.create_task(self._request("commit", position=entry.position))
            if entry.kind == "channel_ended":
                return await committing
            self._committing.add(committing)
            committing.add_done_callback(self._committed)
            await asyncio.sleep(0)  # so that no later request overtakes it

    def _committed(self, committing: "asyncio.Task[None]") -> None:
        self._committing.discard(committing)
        if not committing.cancelled():
            committing.exception()  # the iteration ends if the claim is lost

    async def send(self, text: str, *, sender: str = "bot", message_id: str = "") -> str:
        """Sends a chat message to the browser and returns its ID. See Entry.id for message_id."""
        return (await self.send_messages([{"type": "chat", "messageId": message_id, "chat": {"text": text, "from": sender}}]))[0]

    async def send_messages(self, messages: Iterable[Mapping[str, Any]]) -> list[str]:
        """Sends up to 64 messages of any type, in order and each once per messageId."""
        named = [{**message, "messageId": message.get("messageId") or str(uuid.uuid4())} for message in messages]
        await self._request("send", messages=named)
        return [message["messageId"] for message in named]

    def audio(self, payload: Mapping[str, Any]) -> bool:
        """Sends an audio frame. It returns False and drops the frame if the connection is lost or slow."""
        socket, message = self._runtime._socket, {"type": "audio", "audio": payload}
        if self.cause or not socket or socket.buffered() > MAX_AUDIO_BACKLOG:
            return False
        socket.write(encode({"op": "audio", "channel": self.id, "claim": self.claim, "message": message}))
        return True

    async def expect(
        self, kind: str = "bot", *, ttl: float = 300.0, scope: str = "item", work_item_id: str = "", entry: Entry | None = None
    ) -> WorkItem:
        """Registers a work item, so that a provider can post its result within ttl seconds.

        The result arrives as entries, or the entry timeout does. Entry is what the provider
        has to answer: its trace is continued.
        """
        members = {"workItemId": work_item_id or str(uuid.uuid4()), "kind": kind, "scope": scope, "ttlMs": round(ttl * 1000)}
        return work_item(await self._request("await", **members, trace=entry.data.get("trace") if entry else None))

    async def cancel(self, item: WorkItem | str) -> None:
        """Cancels a work item: neither a result nor a timeout arrives."""
        await self._request("cancel", workItemId=item if isinstance(item, str) else item.id)

    async def end(self, reason: str = "") -> None:
        """Ends the channel for all participants. The entry channel_ended follows."""
        await self._request("end", reason=reason)

    async def release(self) -> None:
        """Gives the claim back: the session is offered to another runtime at once."""
        if not self.cause:
            with contextlib.suppress(TelapiError):  # the claim has ended anyway
                await self._request("release")
            self._close("released")

    async def _request(self, op: str, **members: Any) -> Any:
        if self.cause:
            raise self._unclaimed()
        return await self._runtime._request(op, self.id, claim=self.claim, **members)

    def _unclaimed(self) -> TelapiError:
        return TelapiError("NOT_FOUND", f"channel {self.id} is no longer claimed by this runtime: {self.cause}")

    def _push(self, position: str, data: dict[str, Any], item: Mapping[str, Any] | None) -> None:
        """Queues an entry unless that was done before a reconnect."""
        if number(position) > number(self.received):
            parts = data.get("part", 0), data.get("parts", 0)
            self._queue.append(Entry(self.id, position, data["kind"], data, self._losses, *parts, work_item(item) if item else None))
            self.received = position
        self._notify()

    def _push_audio(self, message: dict[str, Any]) -> None:
        self._audio.append(Entry(self.id, "", "audio", {"kind": "audio", "message": message}))
        self._notify()

    def _resume(self, resumed: Mapping[str, Any] | None) -> None:
        """Continues on a new connection, which pushes all entries after the committed position."""
        if not resumed:
            return self._close("ended" if self._at_end else "claim_lost")  # committing channel_ended ends the claim
        self.work_items = resumed.get("workItems") or []
        self._lose(resumed.get("lostAt", 0))

    def _lose(self, at: int) -> None:
        """Queues a notice, once per loss. All entries that follow are new: commits may be lost, too."""
        if at != self._lost_at:
            self._losses += 1
            self._lost_at, self.received, self._at_end = at, "", False
            self._drop_commits()
            self._queue = deque([Entry(self.id, "", "lost", {"kind": "lost", "at": at}, self._losses)])
            self._notify()

    def _drop_commits(self) -> None:
        for pending in self._runtime._waiting(self.id):
            if pending.op == "commit":
                pending.result.set_result(None)

    def _close(self, cause: str) -> None:
        if not self.cause:
            self.cause = cause
            self.closed.set()
            if cause == "ended":
                self._drop_commits()  # the claim ends with the last one
            self._runtime._forget(self, self._unclaimed())
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
