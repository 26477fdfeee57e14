// A call runtime that echoes chat messages until the browser sends "goodbye".
//
//   (cd ../../sdk/js && npm ci && npm run build) && npm install --no-package-lock
//   TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… node echo.mjs
import { Runtime } from "@telapi/sdk/runtime";

const { TELAPI_URL, TELAPI_KEY } = process.env;
if (!TELAPI_URL || !TELAPI_KEY) {
  console.error("Set TELAPI_URL, such as http://localhost:3001, and TELAPI_KEY, an API key with the scope RUN_CALLS.");
  process.exit(1);
}
const runtime = new Runtime({ url: TELAPI_URL, key: TELAPI_KEY, name: "echo" });
runtime.on("state", ({ state, reason }) => {
  if (state === "connected") console.log("ready: waiting for calls of", TELAPI_URL);
  else if (state !== "ended") console.log(state, reason?.message ?? ""); // the end is reported below
});

async function serve(channel) {
  for await (const entry of channel) {
    if (entry.message?.type === "chat") {
      // With this ID, nothing is sent twice if the entry is handled again after a crash.
      await channel.send("chat", entry.message.chat, { messageId: channel.idFor(entry) });
      if (entry.message.chat.text === "goodbye") await channel.end("goodbye");
    }
    await channel.commit(entry);
  }
}

try {
  for await (const channel of runtime.accept({ capacity: 100 })) {
    serve(channel).catch((error) => console.error(channel.id, error.message));
  }
} catch (error) { // the service rejected the runtime
  console.error(error.message);
  process.exit(1);
}
