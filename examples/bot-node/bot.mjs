// A bot for telapi that needs only Node: it accepts work with 202 and posts its answer later.
//
//   PORT=8080 node examples/bot-node/bot.mjs
//   telapi dev --bot http://127.0.0.1:8080/
//
// With STREAM=1 it sends its answer word by word, as a model would write it.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const telapiURL = (process.env.TELAPI_URL ?? "http://localhost:3001").replace(/\/+$/, "");
const streams = process.env.STREAM === "1";
const retry = new Set([429, 500, 502, 503]);

// answer returns the callback body: what the bot says, and commands for the call.
function answer(work) {
  const text = work.text ?? "";
  const goodbye = text.trim().toLowerCase() === "goodbye";
  return {
    conversation: { identifier: { id: work.channelId } },
    messages: {
      timestamp: new Date().toISOString(),
      message: [{ messageId: 1, content: { textMessage: { textPlain: goodbye ? "Goodbye." : `You said: ${text}` } } }],
    },
    actions: goodbye ? [{ type: "hangup" }] : [],
  };
}

// stream yields the same answer line by line. The runtime gets each sentence as soon as it is complete.
async function* stream(body) {
  for (const word of body.messages.message[0].content.textMessage.textPlain.split(" ")) {
    yield JSON.stringify({ delta: `${word} ` }) + "\n";
    await sleep(50);
  }
  yield JSON.stringify({ done: true, actions: body.actions });
}

// post posts until the outcome is known. The same body again is never counted twice.
async function post(callback, body) {
  const headers = { "Content-Type": streams ? "application/x-ndjson" : "application/json", token: callback.token };
  for (let attempt = 0; attempt < 6; attempt++) {
    let wait = 2 ** attempt / 4;
    try {
      const content = streams ? ReadableStream.from(stream(body)).pipeThrough(new TextEncoderStream()) : JSON.stringify(body);
      const request = { method: "POST", headers, body: content, duplex: "half", signal: AbortSignal.timeout(10_000) };
      const response = await fetch(callback.url, request);
      console.log(response.status, await response.text());
      if (!retry.has(response.status)) return;
      wait = Number(response.headers.get("Retry-After")) || wait;
    } catch (error) { // no response
      console.log(String(error));
    }
    await sleep(wait * 1000);
  }
}

// readWork returns the work of a request, or throws an error that says why it is invalid.
async function readWork(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const work = JSON.parse(Buffer.concat(chunks).toString());
  const { url, token } = work?.callback ?? {};
  if (typeof url !== "string" || !token || !work.channelId) throw new Error("callback.url, callback.token or channelId is missing");
  // Post only to telapi: the request could name any other server.
  if (!url.startsWith(telapiURL + "/")) throw new Error(`callback.url ${JSON.stringify(url).slice(1, -1)} is not at TELAPI_URL ${telapiURL}: set TELAPI_URL`);
  return work;
}

const server = createServer(async (request, response) => {
  let work;
  try {
    work = await readWork(request);
  } catch ({ message }) {
    console.log(message);
    return response.writeHead(400, { "Content-Type": "text/plain" }).end(`${message}\n`);
  }
  response.writeHead(202).end();
  await post(work.callback, answer(work));
});
server.listen(Number(process.env.PORT ?? 8080), "127.0.0.1", () => {
  console.log(`bot listens on http://127.0.0.1:${server.address().port}/`);
});
