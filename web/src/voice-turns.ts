import type { TimelineEvent } from "./api.js";
import { linksOf } from "./turns.js";

/** The stages of a spoken turn, in order, and what they mean. All are measured by the runtime's clock. */
export const stages = {
  request: "From the end of speech to the request to the bot: noticing the end, and recognition.",
  text: "From there to the first text of the answer: its first words, if it streams. If the bot repeats what it hears, from the end of speech.",
  audio: "From the first text to the first audio: the rest of the first sentence, if the answer streams, and synthesis, or the media cache.",
  playback: "From the first audio to the end of the last, or to where the caller interrupts it.",
} as const;

export type Stage = keyof typeof stages;

/** One spoken utterance and its answer, with the milliseconds of each stage. */
export interface VoiceTurn<Node = unknown> {
  text: string;
  node: Node; // the end of the utterance
  times: Partial<Record<Stage, number>>;
  response?: number; // from the end of speech to the first audio
  interrupted: boolean;
}

/** Returns the spoken turns of a session, one per utterance, the oldest first. */
export function voiceTurnsOf<Node extends { event: TimelineEvent }>(nodes: readonly Node[]): VoiceTurn<Node>[] {
  const links = linksOf(nodes);
  return nodes.flatMap((heard) => {
    const id = links.suffix(heard, "ids", "heard:");
    if (!id) return [];
    const { ms = 0, silenceMs = 0 } = heard.event.data as { ms?: number; silenceMs?: number };
    const effects = links.followers.get(`heard:${id}`) ?? [];
    const request = effects.find((node) => links.suffix(node, "ids", "request:"));
    const repeated = effects.find((node) => links.suffix(node, "ids", "playing:"));
    const messages = repeated ? [links.suffix(repeated, "ids", "playing:")!] : request ? links.answersTo(links.suffix(request, "ids", "request:")!) : [];
    const at = (node: Node | undefined) => node?.event.at;
    const ends = messages.flatMap((message) => links.followers.get(`playing:${message}`)?.find(({ event }) => event.source === heard.event.source) ?? []);
    const audio = messages.map((message) => links.withId.get(`playing:${message}`)).find((node) => node); // a part that is interrupted has none
    const moments = { request: at(request), text: at(links.withId.get(`sending:${messages[0]}`)), audio: at(audio), playback: at(ends.at(-1)) };
    const end = heard.event.at - silenceMs;
    const times: VoiceTurn["times"] = {};
    let previous = end;
    for (const [stage, moment] of Object.entries(moments) as [Stage, number | undefined][]) {
      if (moment === undefined) continue;
      times[stage] = Math.max(0, moment - previous);
      previous = moment;
    }
    const transcript = effects.map(({ event }) => (event.data as { text?: string } | undefined)?.text).find((text) => typeof text === "string");
    return [{
      text: transcript ?? `spoke for ${(ms / 1000).toFixed(1)} s`,
      node: heard,
      times,
      ...(moments.audio === undefined ? {} : { response: Math.max(0, moments.audio - end) }),
      interrupted: ends.some(({ event }) => event.title === "playback stopped"),
    }];
  });
}
