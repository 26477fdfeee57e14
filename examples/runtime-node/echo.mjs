// A call runtime that echoes chat messages until the browser sends "goodbye".
//
//   (cd ../../sdk/js && npm ci && npm run build) && npm install --no-package-lock
//   TELAPI_URL=http://localhost:3001 TELAPI_KEY=tk_… node echo.mjs
import { Runtime } from "@telapi/sdk/runtime";

const runtime = new Runtime({ url: process.env.TELAPI_URL, key: process.env.TELAPI_KEY, name: "echo" });
runtime.on("state", ({ state, reason }) => console.log(state === "connected" ? "ready: waiting for calls" : state, reason?.message ?? ""));

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

for await (const channel of runtime.accept({ capacity: 100 })) {
  serve(channel).catch((error) => console.error(channel.id, error.message));
}
