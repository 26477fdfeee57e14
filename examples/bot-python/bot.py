"""A bot for telapi that needs only Python: it accepts work with 202 and posts its answer later.

    PORT=8080 python3 examples/bot-python/bot.py
    telapi dev --bot http://127.0.0.1:8080/

With STREAM=1 it sends its answer word by word, as a model would write it.
"""
import json
import os
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TELAPI_URL = os.environ.get("TELAPI_URL", "http://localhost:3001").rstrip("/")
STREAM = os.environ.get("STREAM") == "1"
RETRY = {429, 500, 502, 503}


def answer(work):
    """Returns the callback body: what the bot says, and commands for the call."""
    text = work.get("text", "")
    goodbye = text.strip().lower() == "goodbye"
    say = "Goodbye." if goodbye else f"You said: {text}"
    return {
        "conversation": {"identifier": {"id": work["channelId"]}},
        "messages": {
            "timestamp": datetime.now(timezone.utc).isoformat(),
            "message": [{"messageId": 1, "content": {"textMessage": {"textPlain": say}}}],
        },
        "actions": [{"type": "hangup"}] if goodbye else [],
    }


def stream(body):
    """Yields the same answer line by line. The runtime gets each sentence as soon as it is complete."""
    text = body["messages"]["message"][0]["content"]["textMessage"]["textPlain"]
    for word in text.split(" "):
        yield json.dumps({"delta": word + " "}).encode() + b"\n"
        time.sleep(0.05)
    yield json.dumps({"done": True, "actions": body["actions"]}).encode()


def post(callback, body):
    """Posts until the outcome is known. The same body again is never counted twice."""
    headers = {"Content-Type": "application/x-ndjson" if STREAM else "application/json", "token": callback["token"]}
    for attempt in range(6):
        wait = 2**attempt / 4
        request = urllib.request.Request(callback["url"], stream(body) if STREAM else json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return print(response.status, response.read().decode(), flush=True)
        except urllib.error.HTTPError as error:
            print(error.code, error.read().decode(), flush=True)
            if error.code not in RETRY:
                return
            wait = int(error.headers.get("Retry-After", 0)) or wait
        except OSError as error:  # no response
            print(error, flush=True)
        time.sleep(wait)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        problem = ""
        try:
            work = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            url, token, channel = work["callback"]["url"], work["callback"]["token"], work["channelId"]
            if not (url and token and channel):
                raise ValueError("callback.url, callback.token or channelId is empty")
            # Post only to telapi: the request could name any other server.
            if not url.startswith(TELAPI_URL + "/"):
                printable = json.dumps(url)[1:-1]
                raise ValueError(f"callback.url {printable} is not at TELAPI_URL {TELAPI_URL}: set TELAPI_URL")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"{error}\n" if isinstance(error, ValueError) else f"the request is invalid: {error!r}\n"
            print(problem, end="", flush=True)
        self.send_response(400 if problem else 202)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(problem.encode())))
        self.end_headers()
        self.wfile.write(problem.encode())
        if not problem:
            threading.Thread(target=lambda: post(work["callback"], answer(work))).start()


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
print(f"bot listens on http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
