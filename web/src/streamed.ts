import type { TimelineEvent } from "./api.js";

/** The parts of a streamed answer that share a row of the timeline. */
export interface Parts {
  workItemId: string;
  count: number;
  until: number; // when the newest one happened
  text: string; // so far
  unfinished: string; // the start of the sentence after text, which the next part replaces
}

const maxTitle = 200;
/** The end of a sentence that no space follows: Chinese and Japanese have none. */
const noSpaceAfter = /(?:^|[\s\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef])$/;

/** Adds a sentence to a text. */
export function joinSentences(text: string, sentence: string): string {
  return sentence && !noSpaceAfter.test(text) ? `${text} ${sentence}` : text + sentence;
}

interface AnswerPart {
  workItemId?: string;
  part?: number;
  text?: string;
  unfinished?: string;
  kind?: string; // of an entry
  form?: string; // of an entry
}

/** The part of a streamed answer in the payload of an event: an entry, a message of the feed, or a message. */
function partIn(data: unknown): AnswerPart | undefined {
  const { message, chat, ...entry } = (data ?? {}) as AnswerPart & { message?: { chat?: AnswerPart }; chat?: AnswerPart };
  const found = message?.chat ?? chat ?? (/^(?:bot_message|llm_part)$/.test(entry.kind ?? "") ? entry : {});
  return found.part && found.workItemId ? found : undefined;
}

/** Returns an event with the part of a streamed answer that it is about, added to those of an earlier event. Returns other events unchanged. */
export function withParts(event: TimelineEvent, earlier?: Parts): TimelineEvent {
  const part = partIn(event.data);
  if (!part) return event;
  const { workItemId = "", text = "", unfinished = "", form } = part;
  const isWords = form === "plain"; // as in an entry of ?split=none, which has its own spaces
  const parts: Parts = {
    workItemId,
    count: (earlier?.count ?? 0) + 1,
    until: event.at,
    text: isWords ? (earlier?.text ?? "") + text : joinSentences(earlier?.text ?? "", text),
    unfinished,
  };
  const shown = joinSentences(parts.text, unfinished);
  const title = `${event.title.split(": ", 1)[0]!}: ${shown.length > maxTitle ? `${shown.slice(0, maxTitle)}…` : shown}`;
  return { ...event, parts, title: parts.count > 1 ? `${title} (${parts.count} parts)` : title };
}

/** Returns the event of a row with a further part. */
export function addPart(row: TimelineEvent, event: TimelineEvent): TimelineEvent {
  const { title, parts, data } = withParts(event, row.parts);
  return { ...row, title, ...(parts ? { parts } : {}), data, ids: [...(row.ids ?? []), ...(event.ids ?? [])] };
}
