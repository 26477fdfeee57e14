import { useCallback, useEffect, useState } from "react";
import { connect, type ChannelMessage, type ConnectOptions, type Session, type State, type TelapiError } from "./index.js";

/** The number of messages that are kept. */
const maxMessages = 1_000;

/** What a component can show of a session. */
export interface TelapiState {
  /** The session, once it is open. */
  session: Session | undefined;
  /** The session's state, or `idle` without a session. */
  state: State | "idle";
  /** Why the connection was lost or the session has ended. */
  reason: TelapiError | undefined;
  /** Whether text chat is enabled. */
  textChat: boolean;
  /** The newest 1,000 messages of the runtime and of this page, each once. */
  messages: readonly ChannelMessage[];
  /** Whether messages of the runtime were lost: reload what you show. */
  incomplete: boolean;
  /** `Session.send`; rejects without a session. */
  send: Session["send"];
}

const idle: Omit<TelapiState, "send"> = { session: undefined, state: "idle", reason: undefined, textChat: true, messages: [], incomplete: false };

/**
 * Opens a session while the component is mounted and renders the component when it changes. Without options, nothing
 * is opened. New options have no effect on an open session; a new `key` closes it and opens another one.
 */
export function useTelapi(options: ConnectOptions | undefined, key?: unknown): TelapiState {
  const [shown, setShown] = useState(idle);

  useEffect(() => {
    if (!options) return;
    const session = connect(options);
    const append = (message: ChannelMessage) =>
      setShown((before) => {
        if (before.messages.some(({ messageId }) => messageId === message.messageId)) return before; // it was sent again
        return { ...before, messages: [...before.messages, message].slice(-maxMessages) };
      });
    const refresh = () => setShown((before) => ({ ...before, session, state: session.state, reason: session.reason, textChat: session.textChat }));
    refresh();
    session.on("state", refresh);
    session.on("control", refresh);
    session.on("reconnect", ({ recovered }) => recovered || setShown((before) => ({ ...before, incomplete: true })));
    session.on("message", (message) => message.streamId && append(message));
    session.on("frame", ({ direction, message }) => direction === "to_ari" && !/^(audio|p[io]ng)$/.test(message.type) && append(message));
    return () => {
      session.dispose();
      setShown(idle);
    };
  }, [key, !options]);

  const { session } = shown;
  const send = useCallback<Session["send"]>((...args) => session?.send(...args) ?? Promise.reject(new Error("No session is open.")), [session]);
  return { ...shown, send };
}
