// The script runtime of the libraries' test, with the library for Node.
import { Runtime } from "../../../../sdk/js/dist/esm/runtime.js";

const { TELAPI_URL, TELAPI_KEY, TELAPI_NAME } = process.env;
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: TELAPI_NAME });

const say = (channel, text) => channel.send("chat", { text, from: "runtime" });

async function ask(channel, ttlMs) {
  const { workItemId, token, url } = await channel.await({ kind: "tool", scope: "item", ttlMs });
  await say(channel, JSON.stringify({ workItemId, token, url }));
}

async function handle(channel, { kind, message, result }) {
  const text = message?.chat?.text;
  if (kind === "tool_result") await say(channel, `result ${JSON.stringify(result)}`);
  else if (kind === "timeout") await say(channel, "timeout");
  else if (kind !== "frame" || message.type !== "chat") return;
  else if (text.startsWith("say ")) await say(channel, text.slice(4));
  else if (text === "ask") await ask(channel, 60_000);
  else if (text === "short") await ask(channel, 300);
  else if (text === "end") await channel.end("bye");
  else await say(channel, text);
}

async function serve(channel) {
  for await (const entry of channel) {
    if (entry.kind === "lost") {
      console.log(`lost ${channel.id}`);
      continue;
    }
    console.log(`entry ${channel.id} ${entry.position} ${entry.kind} ${entry.message?.chat?.text ?? entry.text ?? ""}`);
    await handle(channel, entry);
    await channel.commit(entry);
  }
}

for await (const channel of runtime.accept({ capacity: 8 })) {
  serve(channel).catch((error) => console.error(channel.id, error.code, error.message));
}
