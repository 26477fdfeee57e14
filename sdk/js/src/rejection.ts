import { TelapiError } from "./errors.js";

/** A rejected handshake. */
export interface Rejection {
  /** The service's error, if it could be fetched. */
  error: TelapiError;
  /** Whether the session has ended for this page. Otherwise the SDK retries. */
  final: boolean;
  /** The service's `Retry-After`, or 0. */
  retryAfterMs: number;
}

const timeoutMs = 10_000;

/**
 * Finds out why a handshake failed. Browsers hide the reason, so this sends a plain GET to the same URL: the service runs
 * the same checks and answers 426 if nothing is wrong. Returns undefined if the service is unreachable.
 */
export async function explainRejection(socketUrl: string, token: string): Promise<Rejection | undefined> {
  const url = socketUrl.replace(/^ws/, "http");
  const request = (init: RequestInit) => fetch(url, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(timeoutMs), ...init });
  try {
    return parseRejection(await request({ headers: { Authorization: `Bearer ${token}` } }));
  } catch {
    if (typeof location === "undefined") return undefined;
  }
  try {
    // A page whose origin is not allowed cannot read the response, but this request succeeds if there is one.
    await request({ mode: "no-cors" });
    return temporaryRejection("ORIGIN_NOT_ALLOWED", `The service does not allow pages of ${location.origin}. Add this origin to the endpoint.`);
  } catch {
    return undefined;
  }
}

/** Returns why the service rejected a handshake with this response. */
export async function parseRejection(response: Pick<Response, "status" | "headers" | "json">): Promise<Rejection> {
  const { status } = response;
  if (status === 426) {
    return temporaryRejection("HANDSHAKE_FAILED", "The token is valid, but the WebSocket could not be opened. A proxy may not support WebSockets.");
  }
  const retryAfterMs = 1000 * (Number(response.headers.get("Retry-After")) || 0);
  const envelope = (await response.json().catch(() => undefined)) as { error?: { code?: string; message?: string; requestId?: string; details?: unknown } } | undefined;
  const { code, message, requestId, details } = envelope?.error ?? {};
  if (!code) return { ...temporaryRejection(`HTTP_${status}`, `The response does not come from telapi: HTTP ${status}.`), retryAfterMs };
  return {
    error: new TelapiError(code, message ?? code, { status, details, ...(requestId ? { requestId } : {}) }),
    final: status < 500 && status !== 429,
    retryAfterMs,
  };
}

function temporaryRejection(code: string, message: string): Rejection {
  return { error: new TelapiError(code, message), final: false, retryAfterMs: 0 };
}
