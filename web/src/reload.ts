import type { Position, TokenResponse } from "@telapi/sdk";
import type { TimelineEvent } from "./api.js";
import type { SavedMessage } from "./chat.js";

/** What the page needs to go on with its session after a reload. */
export interface SavedSession {
  token: TokenResponse;
  position?: Position;
  messages: SavedMessage[];
  events: TimelineEvent[]; // of the page itself; the feed repeats the others
  inCall: boolean;
}

const item = "telapi-session";

/** Saves the session when the page is left, for this tab only. */
export function saveWhenLeft(current: () => SavedSession | undefined): void {
  addEventListener("pagehide", () => {
    try {
      const session = current();
      if (session) sessionStorage.setItem(item, JSON.stringify(session));
    } catch {
      // Without storage, the page does not resume.
    }
  });
}

/** Returns the saved session, once. */
export function takeSavedSession(): SavedSession | undefined {
  try {
    const text = sessionStorage.getItem(item);
    sessionStorage.removeItem(item);
    return text ? (JSON.parse(text) as SavedSession) : undefined;
  } catch {
    return undefined;
  }
}
