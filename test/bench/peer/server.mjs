// The baseline of scenario conversation: chats with a bot as a team would write them by hand,
// with Socket.IO and Redis. The first line of output is the server's URL.
//
// What the runtime has to handle is a stream per conversation (talk:ID), and new conversations
// are a stream too (talks). The runtime registers the token of an answer as a key (answer:TOKEN),
// and sends to the browser with the stream of Socket.IO's Redis adapter.
//
// Frames and answers are not deduplicated, ordered or validated; an answer is lost if the server
// ends between its two commands; conversations have no claims, commits, limits or records.
import { createHash, randomUUID, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { createAdapter } from "@socket.io/redis-streams-adapter";
import { Redis } from "ioredis";
import jwt from "jsonwebtoken";
import { Server } from "socket.io";

const { REDIS_URL, API_KEY, TOKEN_SECRET } = process.env;
const KEPT = 10_000; // entries of a stream
const LIFETIME = 24 * 3600; // of a conversation, in seconds
const redis = new Redis(REDIS_URL, { enableAutoPipelining: true });

const append = (stream, ...fields) => redis.xadd(stream, "MAXLEN", "~", KEPT, "*", ...fields);
const sha256 = (text) => createHash("sha256").update(text).digest();
const wantedKey = sha256(API_KEY);

/** Creates a conversation and the token of its browser. */
function create(request) {
  if (!timingSafeEqual(sha256(request.headers["x-api-key"] ?? ""), wantedKey)) return [401, {}];
  const id = randomUUID();
  return [201, { id, token: jwt.sign({ id }, TOKEN_SECRET, { expiresIn: "1h" }) }];
}

/** Appends a bot's answer, whose token works once. */
async function answer(id, request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts).toString();
  JSON.parse(body);
  if ((await redis.getdel(`answer:${request.headers.token}`)) !== id) return [401, {}];
  await append(`talk:${id}`, "answer", body);
  return [202, { status: "accepted" }];
}

const http = createServer(async (request, response) => {
  const [, kind, id] = request.url.split("/");
  let status = 404;
  let body = {};
  try {
    if (kind === "token") [status, body] = create(request);
    if (kind === "answers") [status, body] = await answer(id, request);
  } catch (error) {
    [status, body] = [error instanceof SyntaxError ? 400 : 503, { error: error.message }];
  }
  const text = JSON.stringify(body);
  response.writeHead(status, { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(text) });
  response.end(text);
});
http.keepAliveTimeout = 60_000;

const io = new Server(http, { adapter: createAdapter(redis), connectionStateRecovery: {}, serveClient: false });
io.engine.on("connection", (connection) => {
  connection.request = null; // is not needed after the handshake
});
io.use((socket, next) => {
  try {
    socket.data.id = jwt.verify(socket.handshake.auth.token, TOKEN_SECRET, { algorithms: ["HS256"] }).id;
    next();
  } catch {
    next(new Error("invalid token"));
  }
});
io.on("connection", (socket) => {
  const { id } = socket.data;
  const stream = `talk:${id}`;
  socket.join(id);
  socket.on("chat", async (chat, acknowledge) => {
    await append(stream, "chat", JSON.stringify(chat));
    acknowledge();
  });
  socket.on("disconnect", (reason) => {
    if (reason !== "server namespace disconnect") append(stream, "disconnected", "");
  });
  append(stream, "connected", "");
  redis.expire(stream, LIFETIME);
  if (!socket.recovered) append("talks", "id", id);
});

http.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}`));
