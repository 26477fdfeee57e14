import type { TelapiError } from "./errors.js";
import type { ChannelMessage, MessageType, Payloads, Ready } from "./messages.js";
import type { Rejection } from "./rejection.js";

/**
 * A session's state:
 * - `connecting`: a connection is being opened, for the first time or again
 * - `connected`
 * - `waiting`: for the delay before the next attempt
 * - `offline`: as `waiting`, while the browser reports that it has no network
 * - `cut`: after `Session.cut`, until `Session.resume`
 * - `ended`: final
 */
export type State = "connecting" | "connected" | "waiting" | "offline" | "cut" | "ended";

/** A change of state. */
export interface StateChange {
  state: State;
  /** Failed attempts since the last stable connection. */
  attempt: number;
  /** Delay until the next attempt, while waiting. */
  retryInMs?: number;
  /** Why the connection was lost or the session has ended. */
  reason?: TelapiError;
}

/** A frame on the connection, including acknowledgements, pings and duplicates. */
export interface Frame {
  direction: ChannelMessage["direction"];
  message: ChannelMessage;
  /** The frame's text. */
  raw: string;
  /** Whether the frame was dropped because it was received before. */
  duplicate: boolean;
}

/** Events of a session. There is one for each message type, with the payload and the whole message. */
export type SessionEvents = {
  [Type in MessageType]: (payload: Payloads[Type], message: ChannelMessage) => void;
} & {
  /** Every message, once and in order. */
  message: (message: ChannelMessage) => void;
  /** A connection is established. */
  ready: (ready: Ready) => void;
  state: (change: StateChange) => void;
  /** A handshake was rejected. Unless `final` is set, the SDK retries. */
  rejected: (rejection: Rejection) => void;
  frame: (frame: Frame) => void;
};
