export { TelapiError } from "./errors.js";
export type { ChannelMessage, DurableType, IceServer, MessageType, Payload, Payloads, Ready, TokenResponse } from "./messages.js";
export type { ConnectOptions, Position, WebSocketConstructor, WebSocketLike } from "./options.js";
export { MAX_UNACKNOWLEDGED } from "./outbox.js";
export type { Rejection } from "./rejection.js";
export { connect } from "./session.js";
export type { Session } from "./session.js";
export type { Frame, SessionEvents, State, StateChange } from "./events.js";
