// The runtime of the test that all libraries share. It obeys chat messages and prints what it receives.
import { Runtime } from "../../../../sdk/js/dist/esm/runtime.js";

const { TELAPI_URL, TELAPI_KEY, TELAPI_NAME, TELAPI_RESUME_MS } = process.env;
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: TELAPI_NAME, resumeMs: TELAPI_RESUME_MS && Number(TELAPI_RESUME_MS) });
process.on("SIGTERM", () => void runtime.close());

const say = (channel, entry, text) => channel.send("chat", { text, from: "runtime" }, { messageId: channel.idFor(entry) });

async function ask(channel, entry, ttlMs) {
  const { workItemId, token, url } = await channel.await({ kind: "tool", scope: "item", ttlMs, workItemId: channel.idFor(entry, "item") });
  await say(channel, entry, JSON.stringify({ workItemId, token, url }));
}

async function obey(channel, entry, text) {
  if (text.startsWith("say ")) await say(channel, entry, text.slice(4));
  else if (text === "ask") await ask(channel, entry, 60_000);
  else if (text === "short") await ask(channel, entry, 300);
  else if (text === "end") await channel.end("bye");
  else await say(channel, entry, text);
}

async function serve(channel) {
  for await (const entry of channel) {
    const { kind, message, position } = entry;
    if (kind === "lost") {
      console.log(`lost ${channel.id}`);
      continue;
    }
    console.log(`entry ${channel.id} ${position} ${kind} ${message?.chat?.text ?? entry.text ?? ""}`);
    if (kind === "frame" && message.type === "chat") await obey(channel, entry, message.chat.text);
    else if (kind === "tool_result") await say(channel, entry, `result ${JSON.stringify(entry.result)}`);
    else if (kind === "timeout") await say(channel, entry, "timeout");
    await channel.commit(entry);
  }
}

for await (const channel of runtime.accept({ capacity: 8 })) {
  serve(channel).catch((error) => console.error(channel.id, error.code, error.message));
}
