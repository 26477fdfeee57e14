// The script runtime of the libraries' test, with the library for Node.
import { createHash } from "node:crypto";
import { Runtime } from "../../../../sdk/js/dist/esm/runtime.js";

const { TELAPI_URL, TELAPI_KEY, TELAPI_NAME, TELAPI_RESUME_MS } = process.env;
const resumeMs = TELAPI_RESUME_MS ? Number(TELAPI_RESUME_MS) : undefined;
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: TELAPI_NAME, resumeMs });

/** An ID that is the same when an entry arrives again after a crash, so that it has the same effect, once. */
function idOf(channel, { position }) {
  const hash = createHash("sha256").update(`${channel.id} ${position}`).digest("hex");
  return `${hash.slice(0, 8)}-${hash.slice(8, 12)}-4${hash.slice(13, 16)}-8${hash.slice(17, 20)}-${hash.slice(20, 32)}`;
}

async function handle(channel, entry) {
  const { kind, message, result } = entry;
  const id = idOf(channel, entry);
  const say = (text) => channel.send("chat", { text, from: "runtime" }, { messageId: id });
  const ask = async (ttlMs) => {
    const { workItemId, token, url } = await channel.await({ workItemId: id, kind: "tool", scope: "item", ttlMs });
    await say(JSON.stringify({ workItemId, token, url }));
  };
  const text = message?.chat?.text;
  if (kind === "tool_result") await say(`result ${JSON.stringify(result)}`);
  else if (kind === "timeout") await say("timeout");
  else if (kind !== "frame" || message.type !== "chat") return;
  else if (text.startsWith("say ")) await say(text.slice(4));
  else if (text === "ask") await ask(60_000);
  else if (text === "short") await ask(300);
  else if (text === "end") await channel.end("bye");
  else await say(text);
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
