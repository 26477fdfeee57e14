import { TelapiError, type TokenResponse } from "@telapi/sdk";

/** Whom the page can talk to. Without a key it asks for one. */
export interface Guide {
  apiKey?: string;
  endpoints: Endpoint[];
  phrases: { say: string; does: string }[];
}

export interface Endpoint {
  id: string;
  name: string;
  modes: string[];
}

export interface Order {
  endpointId: string;
  mode: string;
  identity?: { id: string };
}

export type Lane = "browser" | "service" | "runtime" | "bot";

/** One thing that happened, as the feed tells it. */
export interface TimelineEvent {
  at: number;
  lane: Lane;
  to?: Lane;
  kind: string;
  title: string;
  sessionId: string;
  data?: unknown;
}

export interface Figures {
  characters: number;
  cachedCharacters: number;
  billedCharacters: number;
}

export interface Usage {
  total: Figures;
  buckets: (Figures & { start: string; group?: string })[];
}

/** How many lines of a feed are remembered; more than it repeats. */
const remembered = 5_000;

/** The service, for whoever holds the key. */
export class Api {
  constructor(private readonly key: string) {}

  static async guide(): Promise<Guide> {
    return (await (await fetch("config.json")).json()) as Guide;
  }

  async endpoints(): Promise<Endpoint[]> {
    return ((await (await this.ask("GET", "/api/v1/endpoints")).json()) as { data: Endpoint[] }).data;
  }

  /** A session. Its socket is where the page is from, whatever name the service has for itself. */
  async issue(order: Order): Promise<TokenResponse> {
    const answer = (await (await this.ask("POST", "/api/v1/sessions/token", order)).json()) as TokenResponse;
    const url = new URL(new URL(answer.wsUrl).pathname, location.href);
    url.protocol = location.protocol.replace("http", "ws");
    return { ...answer, wsUrl: url.href };
  }

  async end(sessionId: string): Promise<void> {
    await this.ask("DELETE", `/api/v1/sessions/${sessionId}`);
  }

  async dropSocket(sessionId: string): Promise<void> {
    await this.ask("POST", `/playground/sessions/${sessionId}/drop`);
  }

  async usage(groupBy: string): Promise<Usage> {
    const query = groupBy ? `?interval=month&groupBy=${groupBy}` : "";
    return (await (await this.ask("GET", `/api/v1/usage/tts-characters${query}`)).json()) as Usage;
  }

  /** Tells what happens in a session until it is over. A feed that ends before is taken up again; what it repeats is told once. */
  async follow(sessionId: string, over: () => boolean, signal: AbortSignal, tell: (event: TimelineEvent) => void): Promise<void> {
    const told = new Set<string>();
    while (!signal.aborted) {
      try {
        const answer = await this.ask("GET", `/playground/feed?sessionId=${sessionId}`, undefined, signal);
        for await (const line of lines(answer.body!)) {
          if (told.has(line)) continue;
          told.add(line);
          if (told.size > remembered) told.delete(told.values().next().value!);
          tell(JSON.parse(line) as TimelineEvent);
        }
      } catch (error) {
        if (!signal.aborted && error instanceof TelapiError && error.context.status! < 500 && error.context.status !== 429) throw error;
      }
      if (over()) return;
      await new Promise((done) => setTimeout(done, 1_000));
    }
  }

  private async ask(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const request = fetch(path, {
      method,
      headers: { "X-API-Key": this.key, ...(body ? { "Content-Type": "application/json" } : {}) },
      ...(body ? { body: JSON.stringify(body) } : {}),
      ...(signal ? { signal } : {}),
    });
    const answer = await request.catch((cause: unknown) => {
      throw new TelapiError("UNREACHABLE", "The service could not be reached.", { cause });
    });
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
}

async function refusal(answer: Response): Promise<TelapiError> {
  const { error } = (await answer.json().catch(() => ({}))) as { error?: { code: string; message: string; requestId?: string } };
  const context = { status: answer.status, ...(error?.requestId ? { requestId: error.requestId } : {}) };
  return new TelapiError(error?.code ?? `HTTP_${answer.status}`, error?.message ?? answer.statusText, context);
}

async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const whole = (rest + piece.value).split("\n");
    rest = whole.pop()!;
    yield* whole;
  }
}
