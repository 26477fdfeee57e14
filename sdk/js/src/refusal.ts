import { TelapiError } from "./errors.js";

/** A handshake that was refused. */
export interface Refusal {
  /** The service's own code and words, where it could be asked. */
  error: TelapiError;
  /** Nothing will change this: the session has ended for this page. */
  final: boolean;
  /** How long the service asks to wait. */
  retryAfterMs: number;
}

const patience = 10_000;

/**
 * Finds out why a handshake failed. A browser does not tell, so the same URL is asked with a plain GET, which is checked
 * the same way and answers 426 where nothing is wrong. Undefined: the service could not be reached.
 */
export async function askWhy(socketUrl: string, token: string): Promise<Refusal | undefined> {
  const url = socketUrl.replace(/^ws/, "http");
  const ask = (init: RequestInit) => fetch(url, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(patience), ...init });
  try {
    return read(await ask({ headers: { Authorization: `Bearer ${token}` } }));
  } catch {
    if (typeof location === "undefined") return undefined;
  }
  try {
    // Pages of other origins cannot read the answer. That there is one can be seen all the same.
    await ask({ mode: "no-cors" });
    return temporary("ORIGIN_NOT_ALLOWED", `The service is there, but does not answer pages of ${location.origin}. The endpoint has to allow this origin.`);
  } catch {
    return undefined;
  }
}

async function read(answer: Response): Promise<Refusal> {
  const { status } = answer;
  if (status === 426) {
    return temporary("HANDSHAKE_FAILED", "The token is good, but no socket came about. Perhaps something on the way passes no WebSockets.");
  }
  const retryAfterMs = 1000 * (Number(answer.headers.get("Retry-After")) || 0);
  const envelope = (await answer.json().catch(() => undefined)) as { error?: { code?: string; message?: string; requestId?: string; details?: unknown } } | undefined;
  const { code, message, requestId, details } = envelope?.error ?? {};
  if (!code) return { ...temporary(`HTTP_${status}`, `What answers there is not telapi, or something before it: HTTP ${status}.`), retryAfterMs };
  return {
    error: new TelapiError(code, message ?? code, { status, details, ...(requestId ? { requestId } : {}) }),
    final: status < 500 && status !== 429,
    retryAfterMs,
  };
}

function temporary(code: string, message: string): Refusal {
  return { error: new TelapiError(code, message), final: false, retryAfterMs: 0 };
}
