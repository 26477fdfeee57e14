// Obeys the commands of scenarios.txt: each line of the input is a command, and each line of the output a result.
import { createInterface } from "node:readline";
import { Runtime } from "../../../../sdk/js/dist/esm/runtime.js";

const runtimes = {};
const channels = {}; // by the names of the runtime and of the channel, with their readers and whether they were released

async function run({ runtime: url, do: method, channel: name, arg }) {
  const runtime = runtimes[url];
  const key = `${url} ${name}`;
  switch (method) {
    case "start":
      return void (runtimes[url] = new Runtime(JSON.parse(arg)));
    case "close":
      return runtime.close();
    case "report":
      return runtime.report([{ characters: 1 }]);
    case "open":
      return keep(key, await runtime.open({ channel: arg, endpoint: "e" }));
    case "accept": {
      const accepting = runtime.accept({ capacity: 1, ...(arg && { awaitChat: { kind: arg, ttlMs: 30_000 } }) });
      const { value } = await accepting.next();
      void accepting.return();
      return keep(key, value);
    }
  }
  const used = channels[key];
  try {
    return await use(used, method, arg);
  } catch (error) {
    if (used.released && error.code === "CONVERSATION_ENDED") error.code = "CLOSED";
    throw error;
  }
}

async function use(used, method, arg) {
  const { channel, reader } = used;
  switch (method) {
    case "receive": {
      const { done, value } = await reader.next();
      if (done) throw { code: used.released ? "CLOSED" : "ENDED" };
      return { kind: value.kind, position: value.position, workItem: value.workItem };
    }
    case "commit":
      return channel.commit({ position: arg });
    case "send":
      return channel.send("chat", { text: arg });
    case "await":
      return channel.await(arg ? { workItemId: arg } : {});
    case "cancel":
      return channel.cancel({ workItemId: arg });
    case "end":
      return channel.end(arg);
    case "release":
      used.released = true;
      return channel.release();
  }
}

function keep(key, channel) {
  channels[key] = { channel, reader: channel[Symbol.asyncIterator]() };
  return { channel: channel.id, team: channel.info.team };
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  run(command).then(
    (ok) => console.log(JSON.stringify({ id: command.id, ok })),
    ({ code = "OTHER", message = "" }) => console.log(JSON.stringify({ id: command.id, error: code, message })),
  );
}
