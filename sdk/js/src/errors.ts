/** An error from the service or the SDK. Check `code` in programs; show `message` to people. */
export class TelapiError extends Error {
  static override readonly name = "TelapiError"; // Node prints it: a minifier renames the class
  override readonly name = "TelapiError";

  constructor(
    /** An error code from the service (TEXT_CHAT_DISABLED, BACKPRESSURE, SESSION_ENDED …) or the SDK (OUTBOX_FULL, DISPOSED …). */
    readonly code: string,
    message: string,
    /** HTTP status, close code, request ID and details, if known. */
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

  /** Returns the error for a close code after which the SDK does not reconnect; undefined for other close codes. */
  static ofCloseCode(closeCode: number, reason: string): TelapiError | undefined {
    const known = finalCloseCodes[closeCode];
    if (!known && !(closeCode >= 4500 && closeCode <= 4999)) return undefined;
    return new TelapiError(known?.[0] ?? "REJECTED", known?.[1] ?? (reason || "The service closed the session."), { closeCode });
  }
}

/** Close codes after which the SDK does not reconnect. */
const finalCloseCodes: Record<number, [code: string, message: string]> = {
  1007: ["BAD_FRAMES", "A frame was not valid UTF-8 text."],
  1008: ["REJECTED", "The connection was closed for a policy violation."],
  1009: ["MESSAGE_TOO_LARGE", "A frame was larger than allowed."],
  4500: ["UNAUTHORIZED", "The token is invalid."],
  4501: ["BAD_FRAMES", "Too many invalid frames in a row."],
  4502: ["SESSION_REPLACED", "Another connection replaced this one."],
  4503: ["SESSION_ENDED", "The session has ended."],
  4504: ["SESSION_EXPIRED", "The session has expired."],
};
