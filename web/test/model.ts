import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A server with OpenAI's API that writes when the test lets it. It understands what is said first, and nothing after that. */
export class Model implements AsyncDisposable {
  private readonly answers: ServerResponse[] = [];
  private readonly recordings: ServerResponse[] = [];
  private readonly server = createServer((request, response) => {
    request.resume();
    if (request.url!.endsWith("/transcriptions")) return this.recordings.push(response) > 1 && void response.end('{"text":""}');
    response.writeHead(200, { "Content-Type": "text/event-stream" }).flushHeaders();
    this.answers.push(response);
  });

  async start(): Promise<Record<string, string>> {
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    const url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return { DEMO_LLM_URL: url, DEMO_LLM_MODEL: "brain", DEMO_STT_URL: url, DEMO_STT_MODEL: "ears" };
  }

  /** The number of answers and transcriptions that were asked for. */
  get asked(): [answers: number, transcriptions: number] {
    return [this.answers.length, this.recordings.length];
  }

  understand(text: string): void {
    this.recordings[0]!.end(JSON.stringify({ text }));
  }

  write(text: string, isLast = false): void {
    const answer = this.answers.at(-1)!;
    answer.write(`data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\n`);
    if (isLast) answer.end("data: [DONE]\n\n");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
  }
}
