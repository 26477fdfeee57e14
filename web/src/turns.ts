import type { ChannelMessage } from "@telapi/sdk";
import type { TimelineEvent } from "./api.js";

/** The parts of a turn, in the order in which they are drawn, and what they mean. */
export const parts = {
  browser: "The page and the network: round trip of the frame, less the time in the service. By the browser's clock.",
  service: "Frame: from its arrival to its acknowledgement, by the instance's clock. Callback: the request of the bot, by the bot's clock.",
  runtime: "From reading the frame to the request to the bot, and from reading the result to sending the answer. By the runtime's clock.",
  bot: "From the request's arrival at the bot to its callback, by the bot's clock. For a bot that reports nothing: the runtime's wait; for an answer that streams, until its first words.",
  waiting: "The rest: transport between the processes, and the time for which an answer is parked.",
  stream: "From the first words of an answer that streams to its last, by the browser's clock.",
  speech: "Synthesis of the answer, or reading it from the media cache, by the runtime's clock.",
} as const;

export type Part = keyof typeof parts;

/** One utterance of the caller and an answer of the bot, with the milliseconds of each part. */
export interface Turn<Node = unknown> {
  text: string;
  node: Node; // the frame, or the request if it has none
  times: Partial<Record<Part, number>>;
  part?: number; // if the bot answers in several parts
  parkedMs?: number;
  firstTextMs?: number; // of an answer that streams
  spoken: boolean; // the caller spoke: see voiceTurnsOf
  total?: number; // undefined until the answer has arrived
  outcome?: string; // why no answer will arrive
}

/** Links events by their IDs. */
export function linksOf<Node extends { event: TimelineEvent }>(nodes: readonly Node[]) {
  const [withId, followers] = [new Map<string, Node>(), new Map<string, Node[]>()];
  for (const node of nodes) {
    for (const id of node.event.ids ?? []) if (!withId.has(id)) withId.set(id, node);
    for (const id of node.event.after ?? []) followers.set(id, [...(followers.get(id) ?? []), node]);
  }
  const suffix = ({ event }: Node, field: "ids" | "after", prefix: string) => event[field]?.find((id) => id.startsWith(prefix))?.slice(prefix.length);
  /** What the runtime does with the result of a work item. */
  const handling = (workItem: string) => {
    const results = followers.get(`request:${workItem}`)?.filter(({ event }) => event.source === "entries" && event.kind !== "timer") ?? [];
    return results.flatMap(({ event }) => (event.ids ?? []).filter((id) => id.startsWith("entry:")).flatMap((id) => followers.get(id) ?? []));
  };
  /** The IDs of the chat messages that the runtime sends for the result of a work item. An answer that streams has several. */
  const answersTo = (workItem: string) => handling(workItem).flatMap((node) => (node.event.title === "sends chat" ? (suffix(node, "ids", "sending:") ?? []) : []));
  return { withId, followers, suffix, handling, answersTo };
}

/** Returns the turns of a session, one per work item, the oldest first. */
export function turnsOf<Node extends { event: TimelineEvent }>(nodes: readonly Node[]): Turn<Node>[] {
  const { withId, followers, suffix, handling } = linksOf(nodes);

  /** The frame that caused a request, directly or through an earlier one. */
  const frameOf = (request: Node): string | undefined => {
    const [previous, position] = [suffix(request, "after", "request:"), suffix(request, "after", "entry:")];
    if (previous) return withId.has(`request:${previous}`) ? frameOf(withId.get(`request:${previous}`)!) : undefined;
    const entry = position && withId.get(`entry:${position}`);
    return entry ? suffix(entry, "ids", "stored:") : undefined;
  };

  /** Why a request will not be answered, as far as that is known. */
  const outcomeOf = (request: Node, workItem: string): string | undefined => {
    const later = nodes.slice(nodes.indexOf(request)).map(({ event }) => event);
    const isTimeout = ({ kind, title, after }: TimelineEvent) => kind === "timer" && (title.startsWith("bot_timeout") || after?.includes(`request:${workItem}`));
    if (!handling(workItem).length && later.some(isTimeout)) return "timed out";
    return later.some(({ kind, title }) => kind === "session" && title.startsWith("ended")) ? "ended" : undefined;
  };

  const turnOf = (request: Node, workItem: string): Turn<Node> => {
    const messageId = frameOf(request);
    const frame = withId.get(`frame:${messageId}`);
    const stored = withId.get(`stored:${messageId}`);
    const ack = followers.get(`stored:${messageId}`)?.find(({ event }) => event.to === "browser");
    const answer = withId.get(`answer:${workItem}`);
    const receipt = followers.get(`answer:${workItem}`)?.find(({ event }) => event.to === "bot");
    const handled = handling(workItem);
    const read = handled.find(({ event }) => event.title.startsWith("reads "));
    const sending = handled.find((node) => suffix(node, "ids", "sending:"));
    const message = sending && withId.get(`message:${suffix(sending, "ids", "sending:")}`);
    const received = sending && followers.get(`message:${suffix(sending, "ids", "sending:")}`)?.find(({ event }) => event.to === "browser");
    const streams = message?.event.parts;
    const says = (text = "") => (streams ? !!text && streams.text.startsWith(text) : text === chatOf(message)?.text);
    const speech = chatOf(message)?.spoken ? nodes.slice(nodes.indexOf(message!)).find(({ event }) => event.kind === "speech" && event.lane === "service" && says((event.data as { text?: string }).text)) : undefined;

    const inService = ack && stored ? positive((ack.event.data as ChannelMessage).timestamp - stored.event.at) : 0;
    const times: Turn["times"] = {};
    if (ack && frame) times.browser = positive(ack.event.at - frame.event.at - inService);
    if (ack || receipt) times.service = inService + ((streams ? 0 : receipt?.event.ms) ?? 0); // the request of a stream lasts until its end
    times.runtime = (request.event.ms ?? 0) + (sending?.event.ms ?? 0);
    const bot = (streams ? undefined : answer?.event.ms) ?? read?.event.ms;
    if (bot !== undefined) times.bot = bot;
    if (speech?.event.ms) times.speech = speech.event.ms;

    const turn: Turn<Node> = { text: textOf(request, frame), node: frame ?? request, times, spoken: !!suffix(request, "after", "heard:") };
    const isPart = suffix(request, "after", "request:") || followers.get(`request:${workItem}`)?.some((node) => suffix(node, "ids", "request:"));
    const { part } = (request.event.data ?? {}) as { part?: unknown }; // a trace may contain anything
    if (isPart && part && typeof part === "number") turn.part = part;
    const parked = receipt && suffix(receipt, "ids", "parked:");
    if (parked && read) turn.parkedMs = positive(read.event.at - receipt.event.at); // both by the demo's clock
    const spent = (times.browser ?? 0) + (times.service ?? 0) + times.runtime + (times.bot ?? 0);
    if (received && frame) {
      times.waiting = positive(received.event.at - frame.event.at - spent);
    } else if (sending && !frame) {
      times.waiting = positive(sending.event.at - request.event.at - spent); // the caller spoke: by the runtime's clock
    }
    if (times.waiting === undefined) {
      const outcome = outcomeOf(request, workItem);
      return outcome ? { ...turn, outcome } : turn;
    }
    if (streams) {
      turn.firstTextMs = spent + times.waiting;
      if (received?.event.parts) times.stream = positive(received.event.parts.until - received.event.at);
    }
    turn.total = spent + times.waiting + (times.stream ?? 0) + (times.speech ?? 0);
    return turn;
  };
  return nodes.flatMap((node) => {
    const workItem = suffix(node, "ids", "request:");
    return workItem ? [turnOf(node, workItem)] : [];
  });
}

/** The nearest-rank percentile; undefined without values. */
export function percentile(values: readonly number[], percent: number): number | undefined {
  return values.toSorted((a, b) => a - b)[Math.max(0, Math.ceil((percent / 100) * values.length) - 1)];
}

/** Formats milliseconds: 0.4 ms, 35 ms, 1.21 s. */
export function formatMs(ms: number | undefined): string {
  if (ms === undefined) return "–";
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
}

const positive = (ms: number) => Math.max(0, ms);

/** The payload of a chat message of the runtime. */
function chatOf(node: { event: TimelineEvent } | undefined): { text?: string; spoken?: boolean } | undefined {
  return (node?.event.data as { message?: ChannelMessage } | undefined)?.message?.chat;
}

/** What the caller has said or pressed. */
function textOf({ event }: { event: TimelineEvent }, frame: { event: TimelineEvent } | undefined): string {
  const { dtmf, text } = (event.data ?? {}) as { text?: string; dtmf?: string };
  return String(dtmf ? `digits ${dtmf}` : ((frame?.event.data as Partial<ChannelMessage> | undefined)?.chat?.text ?? text ?? event.title));
}
