import type { StateChange } from "../events.js";
import type { ChannelMessage, IceServer, Payload } from "../messages.js";

/** Options of a runtime. */
export interface RuntimeOptions {
  /** The service's URL, such as https://telapi.example. */
  url: string;
  /** An API key with the scope RUN_CALLS, or a console JWT. */
  key: string;
  /** The runtime's name, for logs and the console. */
  name: string;
  /** How long the runtime keeps its channels without a connection (default 2 s, at most 60 s). Then they are offered to others. */
  resumeMs?: number;
  /** The first retry happens after a random delay of up to this value (default 250 ms). It doubles with each attempt. */
  minDelayMs?: number;
  /** The limit for that doubling (default 10 s). */
  maxDelayMs?: number;
  /** Timeout of a handshake (default 10 s). */
  connectTimeoutMs?: number;
}

/** Events of a runtime. */
export type RuntimeEvents = {
  state: (change: StateChange) => void;
};

/** Options of `Runtime.accept`. */
export interface AcceptOptions {
  /** How many channels to have at a time (default 8). */
  capacity?: number;
  /** Endpoint IDs and modes of the sessions to accept (default all). */
  endpoints?: string[];
  modes?: string[];
  /** Registers a work item with each chat message: see `Entry.workItem`. */
  awaitChat?: Pick<AwaitOptions, "kind" | "ttlMs">;
}

/** A channel to open without a browser, such as a phone call. */
export interface OpenOptions {
  endpoint: string;
  /** The channel's ID (default a UUID). */
  channel?: string;
  /** The team's ID (default the team of the key). */
  team?: string;
  mode?: string;
  profile?: Payload;
  callId?: string;
  transactionId?: string;
}

/** Connects the spans of one conversation across systems. */
export type Trace = NonNullable<ChannelMessage["trace"]>;

/** The kind of provider that answers a work item. */
export type WorkItemKind = "bot" | "llm" | "tool";

/** Options of `Channel.await`. */
export interface AwaitOptions {
  /** Default `bot`. */
  kind?: WorkItemKind;
  /** `item` (default): the token is good for one result. `channel`: for any number of results. */
  scope?: "item" | "channel";
  /** How long to wait for the result (default 5 minutes, at most 24 hours). Then the entry `timeout` follows. */
  ttlMs?: number;
  /** The work item's ID (default a UUID). The same ID again returns the same item, unless 1,024 later ones are settled: see `Channel.idFor`. */
  workItemId?: string;
  /** The trace of the entry that caused the request. */
  trace?: Trace;
}

/** A work item: what a provider needs to post its result. */
export interface WorkItem {
  workItemId: string;
  token: string;
  url: string;
  /** Unix time in milliseconds. */
  deadline: number;
}

/** A work item of an earlier claim whose result can still arrive. */
export interface OpenWorkItem {
  workItemId: string;
  kind: WorkItemKind;
  scope: "item" | "channel";
  deadline: number;
  /** Whether the result has arrived and waits for those of earlier items. */
  parked?: boolean;
}

/** The session of a channel. */
export interface SessionOffer {
  sessionId: string;
  teamId: string;
  endpointId: string;
  mode: string;
  identity?: { id?: string; name?: string };
  metadata?: unknown;
  expiresAt?: number;
  iceServers?: IceServer[];
  trace?: Trace;
}

/** The characters of one text that the runtime synthesized. */
export interface SpeechReport {
  characters: number;
  /** A UUID (default a new one). Each is counted once. */
  id?: string;
  /** Default the team of the key. */
  teamId?: string;
  endpointId?: string;
  provider?: string;
  voice?: string;
  model?: string;
  cached?: boolean;
  /** Unix time in milliseconds (default now). */
  at?: number;
}

/** An entry of a channel. Its kind determines which members it has; docs/runtime.md lists them. */
export interface Entry {
  /** `lost` is not an entry of the channel, but the notice that the service lost data. Compare `Channel.workItems`, and ask again. */
  kind:
    | "frame" | "session" | "bot_message" | "bot_event" | "bot_operation" | "command" | "command_denied" | "metadata" | "channel_data" | "nlu_data"
    | "llm_part" | "llm_result" | "tool_result" | "provider_error" | "timeout" | "channel_ended" | "lost";
  /** The position in the channel; empty for `lost`. */
  position: string;
  channelId: string;
  /** Unix time in milliseconds. */
  at: number;
  trace?: Trace;
  workItemId?: string;
  /** The work item of a chat message. It can be missing even with `AcceptOptions.awaitChat`, for example for messages from before the claim. */
  workItem?: WorkItem;
  message?: ChannelMessage;
  event?: string;
  text?: string;
  command?: Payload & { type: string };
  apply?: "immediate" | "after_playback" | "in_order";
  reason?: string;
  content?: string;
  /** The number of a part of a streamed answer, from 1 on. */
  part?: number;
  /** How many parts a streamed answer had. */
  parts?: number;
  result?: unknown;
  error?: unknown;
  [member: string]: unknown;
}

/** What is fixed for a channel's life. */
export interface ChannelInfo {
  team: string;
  endpoint: string;
  mode?: string;
  callId?: string;
  transactionId?: string;
  /** The browser's session; undefined for a channel without a browser. */
  session?: SessionOffer;
  /** The endpoint's policy for commands. */
  profile?: Payload;
}

/** A channel in the reply to hello. */
export interface Resumed {
  channel: string;
  position?: string;
  workItems?: OpenWorkItem[];
  lostAt?: number;
}

/** The reply to accept and open. */
export type Claimed = ChannelInfo & Resumed & { claim: string };

/** The reply to hello. */
export interface Welcome {
  instance: string;
  connection: string;
  resumed: Resumed[];
  pingIntervalMs: number;
  limits?: { frameBytes?: number };
}

/** An error in a reply or push. */
export interface WireError {
  code: string;
  message: string;
  details?: unknown;
}

/** A frame of the service: a reply has `id`, a push has `event`. */
export interface Frame {
  id?: number;
  ok?: Payload;
  error?: WireError;
  event?: string;
  channel?: string;
  claim?: string;
  position?: string;
  entry?: Entry;
  workItem?: WorkItem;
  message?: ChannelMessage;
  at?: number;
}
