// A call runtime that asks a bot. For each chat message it posts {url, token, text} to BOT_URL. The bot posts its answer
// to url, with the header token, as docs/providers.md describes.
//
//   npm install
//   TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… BOT_URL=http://localhost:8080/ node bot.mjs
import { Runtime } from "@telapi/sdk/runtime";

const { TELAPI_URL, TELAPI_KEY, BOT_URL } = process.env;
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: "bot" });
runtime.on("state", ({ state, reason }) => console.log(state, reason?.message ?? ""));

const say = (channel, text) => channel.send("chat", { text, from: "bot" });

// ask sends a question to the bot. The answer arrives as entries of the channel.
async function ask(channel, text, trace) {
  const item = await channel.await({ kind: "bot", ttlMs: 30_000, trace });
  try {
    const body = JSON.stringify({ url: item.url, token: item.token, text });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(BOT_URL, { method: "POST", headers, body, signal: AbortSignal.timeout(10_000) });
    await response.body?.cancel();
    if (!response.ok) throw new Error(`the bot answered ${response.status}`);
  } catch (error) {
    console.error(channel.id, error.message);
    await channel.cancel(item);
    await say(channel, "The bot is not available. Try again later.");
  }
}

async function apply(channel, command) {
  switch (command.type) {
    case "transfer":
      await say(channel, `You are being transferred to ${command.target}.`);
      return channel.end("transferred");
    case "hangup":
      return channel.end(command.reason ?? "hangup");
  }
}

async function handle(channel, entry) {
  switch (entry.kind) {
    case "frame":
      if (entry.message.type === "chat") await ask(channel, entry.message.chat.text, entry.trace);
      break;
    case "bot_message":
      await say(channel, entry.text);
      break;
    case "command":
      await apply(channel, entry.command);
      break;
    case "timeout":
      await say(channel, "The bot did not answer in time.");
      break;
    case "provider_error":
    case "lost": // answers may be among what the service lost
      await say(channel, "Something went wrong. Please say that again.");
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
