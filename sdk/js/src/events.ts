import type { TelapiError } from "./errors.js";
import type { ChannelMessage, MessageType, Payloads, Ready } from "./messages.js";
import type { Refusal } from "./refusal.js";

/**
 * Where a session stands: `connecting` (also again), `connected`, `waiting` for the next attempt, `offline` (waiting for
 * the network), `cut` (until `resume`), and `ended`, which is for good.
 */
export type State = "connecting" | "connected" | "waiting" | "offline" | "cut" | "ended";

/** A change of state. */
export interface StateChange {
  state: State;
  /** Failed attempts since the last steady connection. */
  attempt: number;
  /** When the next attempt comes, while waiting. */
  retryInMs?: number;
  /** Why the line was lost, or why the session has ended. */
  reason?: TelapiError;
}

/** A frame as it went over the line: acknowledgements, pings and duplicates included. */
export interface Frame {
  direction: ChannelMessage["direction"];
  message: ChannelMessage;
  /** The frame's text. */
  raw: string;
  /** Dropped, because it had come before. */
  duplicate: boolean;
}

/** What a session tells: every type of message by its name, with its payload and the whole message, and these. */
export type SessionEvents = {
  [Type in MessageType]: (payload: Payloads[Type], message: ChannelMessage) => void;
} & {
  /** Every message, once and in order. */
  message: (message: ChannelMessage) => void;
  /** A connection begins. */
  ready: (ready: Ready) => void;
  state: (change: StateChange) => void;
  /** A handshake was refused; unless `final`, it is tried again. */
  refused: (refusal: Refusal) => void;
  frame: (frame: Frame) => void;
};
