// A call runtime that asks a bot. For each chat message it posts {url, token, text} to BOT_URL. The bot posts its answer
// to url, with the header token, as docs/providers.md describes.
//
//   (cd ../../sdk/js && npm ci && npm run build) && npm install --no-package-lock
//   TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… BOT_URL=http://localhost:8080/ node bot.mjs
import { Runtime } from "@telapi/sdk/runtime";

const { TELAPI_URL, TELAPI_KEY, BOT_URL } = process.env;
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: "bot" });
runtime.on("state", ({ state, reason }) => console.log(state === "connected" ? "ready: waiting for calls" : state, reason?.message ?? ""));

// say sends a text because of an entry. With its ID, it is sent once even if the entry is handled again after a crash.
const say = (channel, entry, text) => channel.send("chat", { text, from: "bot" }, { messageId: channel.idFor(entry) });

// ask sends a question to the bot. The answer arrives as entries of the channel.
async function ask(channel, entry) {
  const item = await channel.await({ kind: "bot", ttlMs: 30_000, workItemId: channel.idFor(entry), trace: entry.trace });
  try {
    const body = JSON.stringify({ url: item.url, token: item.token, text: entry.message.chat.text });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(BOT_URL, { method: "POST", headers, body, signal: AbortSignal.timeout(10_000) });
    await response.body?.cancel();
    if (!response.ok) throw new Error(`the bot answered ${response.status}`);
  } catch (error) {
    console.error(channel.id, error.message);
    await channel.cancel(item);
    await say(channel, entry, "The bot is not available. Try again later.");
  }
}

async function apply(channel, entry) {
  const { command } = entry;
  switch (command.type) {
    case "transfer":
      await say(channel, entry, `You are being transferred to ${command.target}.`);
      return channel.end("transferred");
    case "hangup":
      return channel.end(command.reason ?? "hangup");
  }
}

async function handle(channel, entry) {
  switch (entry.kind) {
    case "frame":
      if (entry.message.type === "chat") await ask(channel, entry);
      break;
    case "bot_message":
      await say(channel, entry, entry.text);
      break;
    case "command":
      await apply(channel, entry);
      break;
    case "timeout":
      await say(channel, entry, "The bot did not answer in time.");
      break;
    case "provider_error":
    case "lost": // answers may be among what the service lost
      await say(channel, entry, "Something went wrong. Please say that again.");
  }
}

async function serve(channel) {
  for await (const entry of channel) {
    // After an error, go on with the next entry. If the channel itself is lost, the loop ends.
    await handle(channel, entry).catch((error) => console.error(channel.id, entry.kind, error.message));
    await channel.commit(entry);
  }
}

for await (const channel of runtime.accept({ capacity: 100 })) {
  serve(channel).catch((error) => console.error(channel.id, error.message));
}
