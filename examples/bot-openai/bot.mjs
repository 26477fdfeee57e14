// A bot whose answers come from a language model with OpenAI's API (OpenAI, vLLM, Ollama, llama.cpp …). It needs only Node.
//
//   OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 node examples/bot-openai/bot.mjs
//   telapi dev --bot http://127.0.0.1:8080/
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const { TELAPI_URL = "http://localhost:3001", PORT = "8080" } = process.env;
const { OPENAI_BASE_URL = "https://api.openai.com/v1", OPENAI_API_KEY = "", OPENAI_MODEL = "gpt-4o-mini" } = process.env;
const { SYSTEM_PROMPT = "You answer callers of a hotline. Use one or two short sentences without markup: they are spoken." } = process.env;

/** The last messages of each conversation, by channel ID; at most 1,000 conversations. */
const histories = new Map();

async function complete(channelId, text) {
  const history = [...(histories.get(channelId) ?? []), { role: "user", content: text }].slice(-20);
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: OPENAI_MODEL, messages: [{ role: "system", content: SYSTEM_PROMPT }, ...history] }),
    signal: AbortSignal.timeout(30_000),
  });
  if (!response.ok) throw new Error(`the model returned ${response.status}`);
  const { content } = (await response.json()).choices[0].message;
  histories.delete(channelId); // the newest conversation is the last one of the map
  histories.set(channelId, [...history, { role: "assistant", content }]);
  if (histories.size > 1_000) histories.delete(histories.keys().next().value);
  return content;
}

/** The callback body: the model's answer, or an error that the runtime can react to. */
async function answer({ channelId, text }) {
  try {
    const textPlain = await complete(channelId, text ?? "");
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
  const request = { method: "POST", headers: { "Content-Type": "application/json", token }, body: JSON.stringify(body) };
  for (let attempt = 0; attempt < 6; attempt++) {
    try {
      const { status } = await fetch(url, { ...request, signal: AbortSignal.timeout(10_000) });
      if (status !== 429 && status < 500) return;
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
    if (!new URL(work.callback.url).href.startsWith(new URL("/", TELAPI_URL).href)) throw new Error("unknown host");
  } catch {
    return response.writeHead(400).end();
  }
  response.writeHead(202).end();
  await post(work.callback, await answer(work));
}).listen(Number(PORT), "127.0.0.1", function () {
  console.log(`bot listens on http://127.0.0.1:${this.address().port}/`);
});
