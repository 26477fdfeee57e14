import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A server with OpenAI's API that writes when the test lets it. It understands what is said first, if it is told what that is, and nothing after that. */
export class Model implements AsyncDisposable {
  private readonly answers: ServerResponse[] = [];
  private transcriptions = 0;
  /** Comments, because the demo gives up a model that is silent for long, as it would be on a busy machine. */
  private readonly comments = setInterval(() => this.answers.at(-1)?.writable && this.answers.at(-1)!.write(": still here\n\n"), 1_000);
  private readonly server = createServer((request, response) => {
    request.resume();
    if (request.url!.endsWith("/transcriptions")) return void response.end(JSON.stringify({ text: this.transcriptions++ ? "" : this.understands }));
    response.writeHead(200, { "Content-Type": "text/event-stream" }).flushHeaders();
    this.answers.push(response);
  });

  constructor(private readonly understands = "") {}

  async start(): Promise<Record<string, string>> {
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    const url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return { DEMO_LLM_URL: url, DEMO_LLM_MODEL: "brain", DEMO_STT_URL: url, DEMO_STT_MODEL: "ears" };
  }

  /** The number of answers that were asked for. */
  get asked(): number {
    return this.answers.length;
  }

  write(text: string, isLast = false): void {
    const answer = this.answers.at(-1)!;
    answer.write(`data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\n`);
    if (isLast) answer.end("data: [DONE]\n\n");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.comments);
    this.server.closeAllConnections();
    this.server.close();
  }
}
