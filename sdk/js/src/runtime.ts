export { TelapiError } from "./errors.js";
export type { ChannelMessage, DurableType, Payload, Payloads } from "./messages.js";
export type { StateChange } from "./events.js";
export type { Channel } from "./runtime/channel.js";
export { Runtime } from "./runtime/runtime.js";
export type { AcceptOptions, AwaitOptions, ChannelInfo, Entry, OpenOptions, RuntimeEvents, RuntimeOptions, SessionOffer, SpeechReport, Trace, WorkItem, WorkItemKind, OpenWorkItem } from "./runtime/types.js";
