import { TelapiError, type TokenResponse } from "@telapi/sdk";

/** The playground's configuration. Without a key, the user has to enter one. */
export interface PlaygroundConfig {
  apiKey?: string;
  endpoints: Endpoint[];
  phrases: { say: string; does: string }[];
}

export interface Endpoint {
  id: string;
  name: string;
  modes: string[];
}

export interface TokenRequest {
  endpointId: string;
  mode: string;
  identity?: { id: string };
}

export type Lane = "browser" | "service" | "runtime" | "bot";

/** One event of the feed. */
export interface TimelineEvent {
  at: number; // Unix time in milliseconds
  lane: Lane;
  to?: Lane;
  kind: string;
  title: string;
  sessionId: string;
  data?: unknown;
}

/** Numbers of synthesized characters. */
export interface CharacterCounts {
  characters: number;
  cachedCharacters: number;
  billedCharacters: number;
}

export interface Usage {
  total: CharacterCounts;
  buckets: (CharacterCounts & { start: string; group?: string })[];
}

/** Number of feed lines kept to detect duplicates; more than the feed repeats. */
const maxSeen = 5_000;

/** A client of the HTTP API. */
export class Api {
  constructor(private readonly key: string) {}

  static async config(): Promise<PlaygroundConfig> {
    return (await (await fetch("config.json")).json()) as PlaygroundConfig;
  }

  async endpoints(): Promise<Endpoint[]> {
    return ((await (await this.request("GET", "/api/v1/endpoints")).json()) as { data: Endpoint[] }).data;
  }

  /** Creates a session. Its WebSocket URL uses the page's host instead of the service's public URL. */
  async issue(params: TokenRequest): Promise<TokenResponse> {
    const token = (await (await this.request("POST", "/api/v1/sessions/token", params)).json()) as TokenResponse;
    const url = new URL(new URL(token.wsUrl).pathname, location.href);
    url.protocol = location.protocol.replace("http", "ws");
    return { ...token, wsUrl: url.href };
  }

  async end(sessionId: string): Promise<void> {
    await this.request("DELETE", `/api/v1/sessions/${sessionId}`);
  }

  async dropSocket(sessionId: string): Promise<void> {
    await this.request("POST", `/playground/sessions/${sessionId}/drop`);
  }

  async usage(groupBy: string): Promise<Usage> {
    const query = groupBy ? `?interval=month&groupBy=${groupBy}` : "";
    return (await (await this.request("GET", `/api/v1/usage/tts-characters${query}`)).json()) as Usage;
  }

  /** Streams the events of a session until it has ended. Reconnects if the feed ends early, and skips repeated events. */
  async streamEvents(sessionId: string, ended: () => boolean, signal: AbortSignal, onEvent: (event: TimelineEvent) => void): Promise<void> {
    const seen = new Set<string>();
    while (!signal.aborted) {
      try {
        const response = await this.request("GET", `/playground/feed?sessionId=${sessionId}`, undefined, signal);
        for await (const line of lines(response.body!)) {
          if (seen.has(line)) continue;
          seen.add(line);
          if (seen.size > maxSeen) seen.delete(seen.values().next().value!);
          onEvent(JSON.parse(line) as TimelineEvent);
        }
      } catch (error) {
        if (!signal.aborted && error instanceof TelapiError && error.context.status! < 500 && error.context.status !== 429) throw error;
      }
      if (ended()) return;
      await new Promise((done) => setTimeout(done, 1_000));
    }
  }

  private async request(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const pending = fetch(path, {
      method,
      headers: { "X-API-Key": this.key, ...(body ? { "Content-Type": "application/json" } : {}) },
      ...(body ? { body: JSON.stringify(body) } : {}),
      ...(signal ? { signal } : {}),
    });
    const response = await pending.catch((cause: unknown) => {
      throw new TelapiError("UNREACHABLE", "The service could not be reached.", { cause });
    });
    if (!response.ok) throw await errorOf(response);
    return response;
  }
}

async function errorOf(response: Response): Promise<TelapiError> {
  const { error } = (await response.json().catch(() => ({}))) as { error?: { code: string; message: string; requestId?: string } };
  const context = { status: response.status, ...(error?.requestId ? { requestId: error.requestId } : {}) };
  return new TelapiError(error?.code ?? `HTTP_${response.status}`, error?.message ?? response.statusText, context);
}

/** Splits a body into lines. */
async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let incomplete = "";
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    const parts = (incomplete + chunk.value).split("\n");
    incomplete = parts.pop()!;
    yield* parts;
  }
}
