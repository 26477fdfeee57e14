// A server for a page with a chat. It has the API key and issues call tokens; the page talks to telapi directly.
// It needs only Node, and the SDK built with `npm run build` in sdk/js.
//
//   TELAPI_KEY=tk_… TELAPI_ENDPOINT=ep_… node examples/token-server/server.mjs
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const { TELAPI_URL = "http://localhost:3001", TELAPI_KEY, TELAPI_ENDPOINT, PORT = "8000" } = process.env;
if (!TELAPI_KEY || !TELAPI_ENDPOINT) {
  console.error("Set TELAPI_KEY (a key with the scope CREATE_CALL_TOKEN) and TELAPI_ENDPOINT (an endpoint with the mode chat).");
  process.exit(2);
}

const files = {
  "GET /": ["index.html", "text/html; charset=utf-8"],
  "GET /telapi.js": ["../../sdk/js/dist/telapi.js", "text/javascript"],
};

/** Requests a call token. Put your own login here: the token is for the user of this request. */
async function callToken(user) {
  const response = await fetch(`${TELAPI_URL}/api/v1/sessions/token`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-API-Key": TELAPI_KEY },
    body: JSON.stringify({ endpointId: TELAPI_ENDPOINT, mode: "chat", identity: user }),
    signal: AbortSignal.timeout(10_000),
  });
  return { status: response.status, body: await response.text() };
}

const server = createServer(async (request, response) => {
  const route = `${request.method} ${request.url}`;
  try {
    if (route === "POST /call-token") {
      const { status, body } = await callToken({ id: "visitor" });
      response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store" }).end(body);
    } else if (files[route]) {
      const [file, type] = files[route];
      response.writeHead(200, { "Content-Type": type }).end(await readFile(new URL(file, import.meta.url)));
    } else {
      response.writeHead(404).end();
    }
  } catch (error) {
    console.error(route, error);
    response.writeHead(502).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => console.log(`open http://127.0.0.1:${server.address().port}/`));
