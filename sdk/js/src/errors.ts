/** Why something did not happen: `code` is for programs, `message` for people. */
export class TelapiError extends Error {
  override readonly name = "TelapiError";

  constructor(
    /** A code of the service (TEXT_CHAT_DISABLED, BACKPRESSURE, SESSION_ENDED …) or of the SDK (OUTBOX_FULL, DISPOSED …). */
    readonly code: string,
    message: string,
    /** What else is known: HTTP status, close code, request id, details. */
    readonly context: {
      status?: number;
      closeCode?: number;
      requestId?: string;
      details?: unknown;
      cause?: unknown;
    } = {},
  ) {
    super(message, { cause: context.cause });
  }
}

/** What the close codes after which nobody comes back mean. */
const finalCloses: Record<number, [code: string, message: string]> = {
  1007: ["BAD_FRAMES", "A frame was not valid text."],
  1008: ["REFUSED", "The connection was refused by a policy."],
  1009: ["MESSAGE_TOO_LARGE", "A frame was larger than allowed."],
  4500: ["UNAUTHORIZED", "The token is not valid."],
  4501: ["BAD_FRAMES", "Too many bad frames in a row."],
  4502: ["SESSION_REPLACED", "Another connection took the session over."],
  4503: ["SESSION_ENDED", "The session has ended."],
  4504: ["SESSION_EXPIRED", "The session's time is over."],
};

/** The error of a close code that ends the session for this page, or undefined: come back. */
export function finalClose(closeCode: number, reason: string): TelapiError | undefined {
  const known = finalCloses[closeCode];
  if (!known && !(closeCode >= 4500 && closeCode <= 4999)) return undefined;
  return new TelapiError(known?.[0] ?? "REFUSED", known?.[1] ?? (reason || "The service closed the session."), { closeCode });
}
