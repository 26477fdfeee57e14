"""The runtime contract, docs/runtime-contract.md, in Python. It needs redis-py 4.3 or newer."""

import base64
import hashlib
import hmac
import json
import secrets
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

SCRIPTS = Path(__file__).resolve().parents[2] / "callruntime" / "lua"
KEYS = ("meta", "in", "out", "seen", "sent", "work", "forget", "seenBefore", "sentBefore")
OFFERS, GROUP = "telapi:offers", "runtimes"
LEASE = 15_000  # ms that a claim lasts; it is renewed after a third of this time
POLL = 5.0  # seconds after which to read without a notice, since a notice can be lost
REFUSALS = ("lost", "claim_lost", "unknown", "exists")


class Refused(Exception):
    """A script refused to work. `word` is its reply, for example claim_lost."""

    def __init__(self, script, word):
        super().__init__(f"{script}: {word}")
        self.word = word


class Runtime:
    """A runtime's connection to the key-value store. It can be shared by threads."""

    def __init__(self, url, name):
        self.name = name
        # While the store is unavailable, commands are repeated. Each of them can be.
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10, retry=Retry(ConstantBackoff(0.2), -1),
                                          retry_on_error=[redis.ConnectionError, redis.TimeoutError])
        self.held = f"telapi:runtime:{name}"  # the channels that this runtime may have claimed
        prelude = (SCRIPTS / "channel.lua").read_text()
        self.scripts = {f.stem: prelude + f.read_text() for f in SCRIPTS.glob("*.lua")}
        self.digests = {s: hashlib.sha1(text.encode()).hexdigest() for s, text in self.scripts.items()}
        version, running = prelude.split("\n", 1)[0].split()[-1], self.redis.get("telapi:scripts")
        if running and abs(int(running) - int(version)) > 1:
            raise RuntimeError(f"the service runs version {running} of the scripts, these are version {version}")
        self.measure_clock()
        try:
            self.redis.xgroup_create(OFFERS, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def measure_clock(self):
        """Compares the store's clock with ours, for the deadlines of scripts."""
        seconds, micros = self.redis.time()
        self.clock_offset = seconds + micros / 1e6 - time.time()

    def now(self):
        """Returns the time of the store's clock in Unix ms."""
        return int((time.time() + self.clock_offset) * 1000)

    def run(self, script, channel_id, *args):
        """Runs a script on a channel. If it arrives after its deadline, it has no effect, so that a
        call that the network delayed cannot disturb a later one."""
        keys = [f"telapi:ch:{{{channel_id}}}:{key}" for key in KEYS]
        while True:
            call = (len(keys), *keys, *args, self.now() + 5_000)
            try:
                try:
                    return self.redis.evalsha(self.digests[script], *call)
                except redis.exceptions.NoScriptError:
                    return self.redis.eval(self.scripts[script], *call)
            except redis.ResponseError as error:
                if not str(error).startswith("LATE"):
                    raise
                self.measure_clock()

    def channels(self):
        """Returns the IDs of the channels that this runtime has claimed, also before a restart."""
        ids = self.redis.zrange(self.held, 0, -1)
        return [i for i in ids if self.redis.hget(f"telapi:ch:{{{i}}}:meta", "claimedBy") == self.name]

    def accept(self):
        """Waits up to half a second for a session and claims it. Returns its channel, or None."""
        offers = self.redis.xautoclaim(OFFERS, GROUP, self.name, LEASE, count=1)[1]
        if not offers:  # none that another runtime has read, but not claimed
            streams = self.redis.xreadgroup(GROUP, self.name, {OFFERS: ">"}, count=1, block=500)
            offers = streams[0][1] if streams else []
        for offer_id, fields in offers:  # at most one
            channel = self.claim(json.loads(fields["offer"])["sessionId"], "accept") if fields else None
            self.redis.xack(OFFERS, GROUP, offer_id)
            self.redis.xdel(OFFERS, offer_id)
            return channel

    def claim(self, channel_id, action):
        """Claims a channel with `accept` or `attach`. Returns None if it is ended, or not ours."""
        self.redis.zadd(self.held, {channel_id: time.time() * 1000})  # before the claim: a crash must not hide it
        self.redis.expire(self.held, 7 * 86_400)
        token = secrets.token_hex(16)
        reply = self.run("claim", channel_id, self.name, token, LEASE, action, self.now())
        if reply[0] != "claimed":
            return None
        return Channel(self, channel_id, token, position=reply[8], offer=json.loads(reply[10] or "null"))


class Channel:
    """A claimed channel. One thread works on it."""

    def __init__(self, runtime, channel_id, token, position, offer):
        self.runtime, self.id, self.token, self.position, self.offer = runtime, channel_id, token, position, offer
        self.last_id = ""  # of the newest message that we sent
        self.item, self.item_until = "", 0.0  # the newest work item, and when it expires
        self.renew_at = time.monotonic() + LEASE / 3000
        self.touch_at = 0.0
        self.notices = runtime.redis.pubsub(ignore_subscribe_messages=True)
        self.notices.subscribe(f"telapi:ch:{{{channel_id}}}:up")

    def run(self, script, *args):
        reply = self.runtime.run(script, self.id, *args)
        word = reply if isinstance(reply, str) else reply[0]
        if word in REFUSALS:
            raise Refused(script, word)
        return reply

    def entries(self, stop):
        """Yields the position and the content of each entry as soon as it is there, until stop()."""
        stream = f"telapi:ch:{{{self.id}}}:in"
        while not stop():
            self.keep_claim()
            found = self.runtime.redis.xrange(stream, self.position or "-", "+", count=100)
            if self.position:
                if not found or found[0][0] != self.position:  # the store has lost its newest entries
                    self.keep_claim(now=True)  # tells the browser, and raises lost
                del found[0]
            for self.position, fields in found:
                self.keep_claim()
                yield self.position, json.loads(fields["entry"])
            if not found:
                self.wait()

    def wait(self):
        """Waits for a notice, or until a work item times out or the claim must be renewed."""
        if time.monotonic() >= self.touch_at:
            ms = self.runtime.run("touch", self.id)  # negative if no work item is awaited
            self.touch_at = time.monotonic() + (min(POLL, ms / 1000) if ms >= 0 else POLL)
        try:
            notice = self.notices.get_message(timeout=max(0.01, min(self.touch_at, self.renew_at) - time.monotonic()))
        except redis.ConnectionError:
            return  # the next call subscribes again
        if notice and notice["data"][0] in "ED":  # not audio: there are entries, or another deadline
            self.touch_at = 0.0

    def keep_claim(self, now=False):
        if now or time.monotonic() >= self.renew_at:
            known = (self.last_id, self.newest_item(), self.position)  # the reply is lost if the store lost one of them
            self.run("claim", self.runtime.name, self.token, LEASE, "renew", "", *known)
            self.renew_at = time.monotonic() + LEASE / 3000

    def newest_item(self):
        return self.item if time.monotonic() < self.item_until else ""

    def commit(self, position):
        self.run("commit", self.token, position, 1000)

    def send(self, name, kind, payload):
        """Sends a message to the browser. With the same name it is sent once, also after a crash."""
        message_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.id} {name}"))
        message = {"type": kind, "sessionId": self.id, "messageId": message_id, "timestamp": int(time.time() * 1000),
                   "direction": "to_browser", kind: payload}
        self.last_id = self.run("send", self.token, "-", self.last_id, message_id, json.dumps(message))[0]

    def await_answer(self, kind, item, secret, ttl_ms=30_000):
        """Registers a work item. Returns its credential and its deadline, or None if the channel has ended.
        The credential is derived from the item, so that a restarted runtime gets the same one."""
        mac = hmac.new(secret.encode(), f"{self.id} {item}".encode(), hashlib.sha256).digest()
        token = "cbt_" + base64.urlsafe_b64encode(mac).decode().rstrip("=")
        digest = hashlib.sha256(token.encode()).hexdigest()
        timeout = {"kind": "timeout", "channelId": self.id, "at": int(time.time() * 1000) + ttl_ms, "workItemId": item, "workItemKind": kind}
        reply = self.run("await", self.token, digest, kind, "work_item", item, ttl_ms, json.dumps(timeout), self.newest_item())
        if reply[0] == "ended":
            return None, None
        self.item, self.item_until = item, time.monotonic() + ttl_ms / 1000
        return token, datetime.fromtimestamp(int(reply[1]) / 1000, timezone.utc).isoformat()

    def end(self, reason):
        entry = {"kind": "channel_ended", "channelId": self.id, "at": int(time.time() * 1000), "reason": reason}
        self.run("end", self.token, reason, json.dumps(entry))

    def close(self, release=True):
        """Releases the claim, so that another runtime gets the session at once."""
        self.notices.close()
        if release:
            self.runtime.run("claim", self.id, self.runtime.name, self.token, 0, "renew", "", "", "", "")
        self.runtime.redis.zrem(self.runtime.held, self.id)
