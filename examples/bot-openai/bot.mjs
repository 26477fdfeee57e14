// A bot whose answers come from a language model with OpenAI's API (OpenAI, vLLM, Ollama, llama.cpp …). It needs only Node.
//
//   OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 node examples/bot-openai/bot.mjs
//   telapi dev --bot http://127.0.0.1:8080/
//
// With STREAM=1 the caller hears the first sentence while the model writes the last one: its response goes to telapi unchanged.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const { TELAPI_URL = "http://localhost:3001", PORT = "8080" } = process.env;
const { OPENAI_BASE_URL = "https://api.openai.com/v1", OPENAI_API_KEY = "", OPENAI_MODEL = "gpt-4o-mini" } = process.env;
const streams = process.env.STREAM === "1";
const { SYSTEM_PROMPT = "You answer callers of a hotline. Use one or two short sentences without markup: they are spoken." } = process.env;

/** The last messages of each conversation, by channel ID; at most 1,000 conversations. */
const histories = new Map();

/** The text of a model's event stream. */
const textOf = (events) => events.split("\n").filter((line) => line.startsWith("data: {"))
  .map((line) => JSON.parse(line.slice(6)).choices[0]?.delta.content ?? "").join("");

/** Asks the model. Returns its answer, or, while it is writing, its events: live, and all of them as a text. */
async function complete(channelId, text) {
  const model = new AbortController();
  const history = [...(histories.get(channelId) ?? []), { role: "user", content: text }].slice(-20);
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: OPENAI_MODEL, stream: streams, messages: [{ role: "system", content: SYSTEM_PROMPT }, ...history] }),
    signal: AbortSignal.any([AbortSignal.timeout(30_000), model.signal]),
  });
  if (!response.ok) throw new Error(`the model returned ${response.status}`);
  const remember = (content) => {
    histories.delete(channelId); // the newest conversation is the last one of the map
    histories.set(channelId, [...history, { role: "assistant", content }]);
    if (histories.size > 1_000) histories.delete(histories.keys().next().value);
    return content;
  };
  if (!streams) return remember((await response.json()).choices[0].message.content);
  const [live, copy] = response.body.tee();
  const events = new Response(copy).text();
  events.then((all) => remember(textOf(all)), (error) => console.error(String(error)));
  return { live, events, stop: () => model.abort() };
}

/** The callback body: the model's answer, or an error that the runtime can react to. */
async function answer({ channelId, text }) {
  try {
    const textPlain = await complete(channelId, text ?? "");
    if (streams) return textPlain; // its events
    return {
      conversation: { identifier: { id: channelId } },
      messages: { timestamp: new Date().toISOString(), message: [{ messageId: 1, content: { textMessage: { textPlain } } }] },
    };
  } catch (error) {
    console.error(channelId, String(error));
    return { error: { code: "MODEL_FAILED", message: "The model did not answer." } };
  }
}

/** Posts until the outcome is known. The same body again is never counted twice. */
async function post({ url, token }, body) {
  const headers = { "Content-Type": body.live ? "text/event-stream" : "application/json", token };
  for (let attempt = 0; attempt < 6; attempt++) {
    try {
      const content = !body.live ? JSON.stringify(body) : attempt === 0 ? body.live : await body.events;
      const { status } = await fetch(url, { method: "POST", headers, body: content, duplex: "half", signal: AbortSignal.timeout(30_000) });
      if (status !== 429 && status < 500) return body.stop?.(); // 409: the caller has interrupted, so the model can stop
    } catch (error) {
      console.error(String(error)); // no response
    }
    await sleep(2 ** attempt * 250);
  }
}

createServer(async (request, response) => {
  let work;
  try {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    work = JSON.parse(Buffer.concat(chunks));
    // Post only to telapi: the request could name any other server.
    const { href } = new URL(work.callback.url);
    if (!href.startsWith(new URL("/", TELAPI_URL).href)) throw new Error(`callback.url ${href} is not at TELAPI_URL ${TELAPI_URL}: set TELAPI_URL`);
  } catch ({ message }) {
    console.log(message);
    return response.writeHead(400, { "Content-Type": "text/plain" }).end(`${message}\n`);
  }
  response.writeHead(202).end();
  await post(work.callback, await answer(work));
}).listen(Number(PORT), "127.0.0.1", function () {
  console.log(`bot listens on http://127.0.0.1:${this.address().port}/`);
});
