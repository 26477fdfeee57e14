#!/usr/bin/env python3
"""A call runtime in Python. It forwards chat messages to a bot and sends the bot's answers to the
browser, until the bot hangs up. Without a bot it echoes.

    REDIS_URL=redis://127.0.0.1:6379 BOT_URL=http://127.0.0.1:8080/ TELAPI_URL=http://localhost:3001 ./runtime.py

Every entry is handled at least once. What is done for an entry has an ID that is derived from the
entry's position, so that handling it again after a crash has no second effect.
"""

import json
import logging
import os
import signal
import threading
import urllib.parse
import urllib.request

from telapi import Refused, Runtime

TELAPI_URL = os.environ.get("TELAPI_URL", "http://localhost:3001")
BOT_URL = os.environ.get("BOT_URL")
SECRET = os.environ.get("RUNTIME_SECRET", "change me")  # credentials are derived from it

log = logging.getLogger("runtime")
stopping = threading.Event()


def serve(runtime, channel):
    """Works on a channel until it ends, another runtime has it, or this one stops."""
    log.info("%s: from %s, for %s", channel.id, channel.position or "the start", channel.offer and channel.offer.get("identity"))
    while channel:
        try:
            for position, entry in channel.entries(stopping.is_set):
                handle(channel, position, entry)
                channel.commit(position)
                if entry["kind"] == "channel_ended":
                    return channel.close(release=False)
            return channel.close()
        except Refused as refused:
            log.warning("%s: %s", channel.id, refused)
            if refused.word not in ("lost", "unknown"):
                return channel.close(release=False)  # claim_lost: another runtime works on it
            channel = runtime.claim(channel.id, "attach")  # the store lost data: start at the committed position


def handle(channel, position, entry):
    """Handles one entry. `position` is the same when the entry is handled again."""
    kind = entry["kind"]
    if kind == "frame" and entry["message"]["type"] == "chat":
        text = entry["message"]["chat"].get("text", "")
        if BOT_URL:
            ask_bot(channel, f"ask-{position}", text, entry.get("trace", {}))
        elif text == "goodbye":
            channel.end("goodbye")
        else:
            channel.send(f"echo-{position}", "chat", {"text": text})
    elif kind == "bot_message":
        channel.send(f"say-{position}", "chat", {"text": entry["text"]})
    elif kind in ("timeout", "provider_error"):
        channel.send(f"sorry-{position}", "chat", {"text": "I have no answer to that."})
    elif kind == "command" and entry["command"]["type"] == "hangup":
        channel.end("hangup")


def ask_bot(channel, item, text, trace):
    """Registers a work item, then asks the bot, as docs/providers.md suggests. The answer is an entry."""
    credential, expires_at = channel.await_answer("bot", item, SECRET)
    if not credential:
        return  # the channel has ended
    query = urllib.parse.urlencode({k: trace[k] for k in ("traceId", "parentSpanId", "callId") if k in trace})
    callback = {"url": f"{TELAPI_URL}/api/v1/webhooks/bot/{channel.id}?{query}", "token": credential, "expiresAt": expires_at}
    work = {"kind": "bot", "channelId": channel.id, "workItemId": item, "text": text, "callback": callback}
    request = urllib.request.Request(BOT_URL, json.dumps(work).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=3).close()
    except OSError as error:
        log.warning("%s: the bot is not available, %s times out: %s", channel.id, item, error)


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    runtime = Runtime(os.environ["REDIS_URL"], os.environ.get("RUNTIME_NAME", "runtime-python"))
    calls = []

    def start(channel):
        if channel:
            calls.append(threading.Thread(target=serve, args=(runtime, channel)))
            calls[-1].start()

    for channel_id in runtime.channels():  # that we had before a restart
        start(runtime.claim(channel_id, "attach"))
    log.info("ready")
    while not stopping.is_set():
        start(runtime.accept())
        calls = [call for call in calls if call.is_alive()]
    for call in calls:
        call.join()


if __name__ == "__main__":
    main()
