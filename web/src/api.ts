import { TelapiError, type TokenResponse } from "@telapi/sdk";
import type { Parts } from "./streamed.js";

/** The playground's configuration. Without a key, the user has to enter one. */
export interface PlaygroundConfig {
  apiKey?: string;
  phrases: { say: string; does: string }[];
  speechProviders?: string[];
  botUrl?: string;
  ownBot?: boolean; // the bot is the user's, not the demo's
  instances?: number; // that can be killed and restarted
}

/** An instance of `telapi dev --instances`. */
export interface Instance {
  number: number;
  state: "running" | "starting" | "stopped";
  pid?: number;
  serving: boolean; // the session's newest connection
}

export interface Endpoint {
  id: string;
  name: string;
  enabled: boolean;
  capabilities: { modes: string[]; commands: string[] }; // those that the deployment has enabled
}

/** An endpoint as administrators see it. */
export interface AdminEndpoint extends Endpoint {
  modes: string[];
  origins: string[];
  gatewayProfile: unknown;
  warnings?: Issue[];
}

/** What the key of an administrator can do. */
export interface Access {
  teamId: string;
  scopes: string[];
}

/** A problem at a JSON Pointer. */
export interface Issue {
  path: string;
  message: string;
}

export interface Decision {
  type: string;
  decision: string; // allowed or denied
  reason?: string;
  ignored?: string[];
}

/** What a callback would do. */
export interface DryRun {
  entries: Record<string, unknown>[];
  decisions: Decision[];
  warnings: Issue[];
}

/** A managed command of the service. */
export interface CommandSpec {
  type: string;
  fields: { name: string; type: string; required?: boolean }[];
}

export interface Credential {
  token: string;
  path: string;
  expiresAt: string;
}

/** What a session waits for. */
export interface Waiting {
  forRuntime: boolean;
  workItems: WaitingItem[] | null; // in the order in which their results are delivered
}

/** An open work item. Its result is parked if it waits for those of earlier items. */
export interface WaitingItem {
  id: string;
  registeredAt: number; // when the feed found it
  expiresAt: number;
  parked: boolean;
}

export interface TokenRequest {
  endpointId: string;
  mode: string;
  identity?: { id: string };
}

export type Lane = "browser" | "service" | "runtime" | "bot";

/** One event of the feed. It follows those of the same source with a smaller number, and all events with an ID in `after`. */
export interface TimelineEvent {
  at: number; // Unix time in milliseconds, by the clock of the process that reports the event
  lane: Lane;
  to?: Lane;
  kind: string;
  title: string;
  sessionId: string;
  source?: string;
  seq?: number;
  ids?: string[];
  after?: string[];
  ms?: number; // a duration by one clock: time spent in the lane, or the latency of an HTTP request
  http?: Exchange;
  data?: unknown;
  parts?: Parts; // of a row for a streamed answer; its data is that of the newest part
}

/** An HTTP request, or its response if it has a status. */
export interface Exchange {
  method: string;
  url: string;
  status?: number;
  headers?: Record<string, string>;
}

/** Is notified of the requests that change something, and of their responses. */
export interface RequestObserver {
  requested(http: Exchange, body: unknown): void;
  answered(http: Exchange, body: unknown, ms: number): void;
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
const adminPath = "/api/v1/admin/";

/** A client of the HTTP API. */
export class Api {
  constructor(
    private readonly key: string,
    private readonly observer?: RequestObserver,
  ) {}

  /** The ID of the key, which is not secret. */
  get keyId(): string {
    return this.key.split("_")[1] ?? "";
  }

  static async config(): Promise<PlaygroundConfig> {
    return (await (await fetch("config.json")).json()) as PlaygroundConfig;
  }

  async endpoints(): Promise<Endpoint[]> {
    const { data } = (await (await this.request("GET", "/api/v1/endpoints?limit=200")).json()) as { data: Endpoint[] };
    return data.filter(({ enabled }) => enabled);
  }

  /** What the key can manage. Rejects if it can manage nothing. */
  async access(): Promise<Access> {
    return (await (await this.request("GET", "/playground/access")).json()) as Access;
  }

  /** Sends a request of the administration. Returns the version of what it returns; with a version, changes only that one. */
  async admin<Data>(method: string, path: string, body?: unknown, version?: string): Promise<{ data: Data; etag: string }> {
    const response = await this.request(method, adminPath + path, body, undefined, version ? { "If-Match": version } : {});
    return { data: (response.status === 204 ? undefined : await response.json()) as Data, etag: response.headers.get("ETag") ?? "" };
  }

  endpoint(id: string): Promise<{ data: AdminEndpoint; etag: string }> {
    return this.admin("GET", `endpoints/${encodeURIComponent(id)}`);
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

  async instances(sessionId?: string): Promise<Instance[]> {
    const query = sessionId ? `?sessionId=${sessionId}` : "";
    return ((await (await this.request("GET", `/playground/instances${query}`)).json()) as { instances: Instance[] }).instances;
  }

  /** The metrics of all instances, one after the other. */
  async instanceMetrics(): Promise<string> {
    return (await this.request("GET", "/playground/instances/metrics")).text();
  }

  /** Kills the process of an instance, or starts it and waits until it is ready. */
  async changeInstance(number: number, action: "kill" | "start"): Promise<void> {
    await this.request("POST", `/playground/instances/${number}/${action}`);
  }

  /** The managed commands of this deployment. */
  async commands(): Promise<CommandSpec[]> {
    return ((await (await this.request("GET", "/api/v1/runtime/capabilities")).json()) as { commands: CommandSpec[] }).commands;
  }

  /** Reports what a callback would do. Body and profile are valid JSON; they are sent as they are, with duplicate names. */
  async lint(kind: string, body: string, profile: string): Promise<DryRun> {
    const request = `{"kind":${JSON.stringify(kind)},"body":${body},"profile":${profile}}`;
    return (await this.admin<DryRun>("POST", "callbacks/lint", request)).data;
  }

  /** Creates a work item for one callback to the session. */
  async issueCredential(sessionId: string, kind: string): Promise<Credential> {
    return (await (await this.request("POST", `/playground/sessions/${sessionId}/credential?kind=${kind}`)).json()) as Credential;
  }

  async cancelWorkItem(sessionId: string, workItemId: string): Promise<void> {
    await this.request("DELETE", `/playground/sessions/${sessionId}/items/${encodeURIComponent(workItemId)}`);
  }

  /** Sends a callback as a provider would, without the API key. */
  async sendCallback({ path, token }: Credential, body: string): Promise<{ status: number; receipt: unknown }> {
    const response = await fetch(path, { method: "POST", headers: { token, "Content-Type": "application/json" }, body });
    return { status: response.status, receipt: await response.json() };
  }

  async usage(groupBy: string): Promise<Usage> {
    const query = groupBy ? `?interval=month&groupBy=${groupBy}` : "";
    return (await (await this.request("GET", `/api/v1/usage/tts-characters${query}`)).json()) as Usage;
  }

  /** Streams the events of a session or channel until it has ended. Reconnects if the feed ends early, and skips repeated events. */
  async streamEvents(of: { sessionId: string } | { channelId: string }, ended: () => boolean, signal: AbortSignal, onEvent: (event: TimelineEvent) => void): Promise<void> {
    const seen = new Set<string>();
    while (!signal.aborted) {
      try {
        const response = await this.request("GET", `/playground/feed?${String(new URLSearchParams(of))}`, undefined, signal);
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

  private async request(method: string, path: string, body?: unknown, signal?: AbortSignal, extra: Record<string, string> = {}): Promise<Response> {
    const started = performance.now();
    const http = { method, url: new URL(path, location.href).href };
    const headers = { "X-API-Key": this.key, ...(body ? { "Content-Type": "application/json" } : {}), ...extra };
    const observer = method === "GET" || path.startsWith(adminPath) ? undefined : this.observer; // neither is part of a session
    observer?.requested({ ...http, headers }, body);
    const pending = fetch(path, {
      method,
      headers,
      ...(body ? { body: typeof body === "string" ? body : JSON.stringify(body) } : {}),
      ...(signal ? { signal } : {}),
    });
    const response = await pending.catch((cause: unknown) => {
      throw new TelapiError("UNREACHABLE", "The service could not be reached.", { cause });
    });
    observer?.answered({ ...http, status: response.status, headers: Object.fromEntries(response.headers) }, await response.clone().json().catch(() => undefined), performance.now() - started);
    if (!response.ok) throw await errorOf(response);
    return response;
  }
}

async function errorOf(response: Response): Promise<TelapiError> {
  const { error } = (await response.json().catch(() => ({}))) as { error?: { code: string; message: string; requestId?: string; details?: unknown } };
  const context = { status: response.status, details: error?.details, ...(error?.requestId ? { requestId: error.requestId } : {}) };
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
