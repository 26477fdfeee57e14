import type { Lane, TimelineEvent } from "./api.js";
import { timeOfDay } from "./dom.js";
import type { ExportedRecording } from "./recorder.js";
import { redact } from "./redact.js";
import { lanes } from "./timeline-row.js";
import { formatMs, type Part, parts, turnsOf } from "./turns.js";
import { type Stage, stages, voiceTurnsOf } from "./voice-turns.js";

/** The trace of a session as a file. It contains no credentials, and phone numbers are masked. */
export interface Trace {
  format: "telapi-trace";
  version: 1;
  sessionId: string;
  exportedAt: string;
  clockOffsetMs: number; // of the service's clock, relative to the browser's
  events: TimelineEvent[];
  recordings?: ExportedRecording[]; // of calls, as they were
}

/** Larger files are not opened. */
export const maxTraceBytes = 16 * 1024 * 1024;

export function createTrace(sessionId: string, clockOffsetMs: number, events: readonly TimelineEvent[]): Trace {
  return { format: "telapi-trace", version: 1, sessionId, exportedAt: new Date().toISOString(), clockOffsetMs, events: events.map((event) => redact(event) as TimelineEvent) };
}

/** Reads a trace. Throws an error with a message for people if the text is not one. */
export function parseTrace(text: string): Trace {
  let trace: Partial<Trace> | null;
  try {
    trace = JSON.parse(text) as Partial<Trace> | null;
  } catch {
    throw new Error("The file is not JSON. Open a trace that was exported as JSON.");
  }
  if (trace?.format !== "telapi-trace" || !Array.isArray(trace.events)) throw new Error("The file is not a trace of telapi. Open a trace that was exported as JSON.");
  if (trace.version !== 1) throw new Error(`The trace has version ${String(trace.version)}. This page opens version 1.`);
  const invalid = trace.events.findIndex((event) => !isEvent(event));
  if (invalid >= 0) throw new Error(`Event ${invalid + 1} of the trace is invalid. Export the trace again.`);
  const badRecording = (trace.recordings ?? []).findIndex((recording) => !isRecording(recording));
  if (badRecording >= 0) throw new Error(`Recording ${badRecording + 1} of the trace is invalid. Export the session again.`);
  return { ...(trace as Trace), sessionId: String(trace.sessionId ?? ""), clockOffsetMs: Number(trace.clockOffsetMs) || 0 };
}

function isEvent(value: unknown): value is TimelineEvent {
  const { at, lane, to, kind, title, source, seq, ids, after, ms, http, parts } = (value ?? {}) as Record<keyof TimelineEvent, unknown>;
  const isLane = (lane: unknown) => lanes.includes(lane as Lane);
  const optional = (value: unknown, type: string) => value === undefined || typeof value === type;
  const areStrings = (list: unknown) => list === undefined || (Array.isArray(list) && list.every((item) => typeof item === "string"));
  const { method, url, status, headers } = (http ?? {}) as Record<string, unknown>;
  const isExchange = http === undefined || (typeof method === "string" && typeof url === "string" && optional(status, "number") && optional(headers, "object"));
  const { workItemId, count, until, text, unfinished } = (parts ?? {}) as Record<string, unknown>;
  const areParts = parts === undefined || (Number.isFinite(count) && Number.isFinite(until) && [workItemId, text, unfinished].every((value) => typeof value === "string"));
  return (
    areParts && Number.isFinite(at) && isLane(lane) && (to === undefined || isLane(to)) && typeof kind === "string" && typeof title === "string" &&
    optional(source, "string") && optional(seq, "number") && optional(ms, "number") && areStrings(ids) && areStrings(after) && isExchange
  );
}

function isRecording(value: unknown): value is ExportedRecording {
  const { startedAt, ms, type, data } = (value ?? {}) as Record<keyof ExportedRecording, unknown>;
  return Number.isFinite(startedAt) && Number.isFinite(ms) && /^audio\/\w+$/.test(String(type)) && typeof data === "string" && /^[A-Za-z0-9+/]*={0,2}$/.test(data);
}

/** Returns a trace as a page without scripts. Its events are in the given order and at the given times. */
export function traceAsHtml(trace: Trace, times: readonly number[]): string {
  const rows = trace.events.map((event, index) => (event.kind === "mark" ? "" : eventRow(event, times[index] ?? event.at)));
  const turns = turnsOf(trace.events.map((event) => ({ event })));
  const names = Object.keys(parts) as Part[];
  const turnRows = turns.map(({ text, times, total, outcome, part, parkedMs }) => {
    const cells = names.map((name) => `<td>${formatMs(times[name])}</td>`).join("");
    return `<tr><th scope="row" dir="auto">${escape(text)}${part ? `, part ${escape(String(part))}` : ""}${parkedMs === undefined ? "" : ` (parked ${formatMs(parkedMs)})`}</th>${cells}<td>${outcome ?? formatMs(total)}</td></tr>`;
  });
  const spoken = voiceTurnsOf(trace.events.map((event) => ({ event }))).map(({ text, times, response, interrupted }) => {
    const cells = (Object.keys(stages) as Stage[]).map((name) => `<td>${formatMs(times[name])}</td>`).join("");
    return `<tr><th scope="row" dir="auto">${escape(text)}${interrupted ? " (interrupted)" : ""}</th>${cells}<td>${formatMs(response)}</td></tr>`;
  });
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>telapi trace ${escape(trace.sessionId)}</title>
<style>${style}</style></head><body>
<h1>Trace of session ${escape(trace.sessionId)}</h1>
<p>Exported at ${escape(trace.exportedAt)}. Events are in the order of their causes. A time that contradicts this order is moved to that of the cause.</p>
<h2>Turns</h2>
<table><thead><tr><th scope="col">utterance</th>${names.map((name) => `<th scope="col" title="${escape(parts[name])}">${name}</th>`).join("")}<th scope="col">total</th></tr></thead>
<tbody>${turnRows.join("\n")}</tbody></table>
${spoken.length ? `<h2>Spoken turns</h2>
<table><thead><tr><th scope="col">utterance</th>${Object.entries(stages).map(([name, meaning]) => `<th scope="col" title="${escape(meaning)}">${name}</th>`).join("")}<th scope="col">response</th></tr></thead>
<tbody>${spoken.join("\n")}</tbody></table>` : ""}
<h2>Events</h2>
<table class="events"><thead><tr><th scope="col">time</th><th scope="col">${lanes.join(" · ")}</th><th scope="col">route</th><th scope="col">kind</th><th scope="col">event</th></tr></thead>
<tbody>${rows.join("\n")}</tbody></table>
</body></html>
`;
}

const style = `body{font:14px/1.45 system-ui,sans-serif;margin:24px;max-width:1100px}table{border-collapse:collapse;width:100%;margin-bottom:24px}th,td{text-align:left;vertical-align:top;padding:3px 8px;border-bottom:1px solid #8884}
.events td:first-child,.events td:nth-child(4),pre{font:12px/1.5 ui-monospace,monospace}.events td:nth-child(-n+4){white-space:nowrap}svg{display:block}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0}summary{cursor:pointer;overflow-wrap:anywhere}`;

function eventRow(event: TimelineEvent, time: number): string {
  const { lane, to, kind, title, http, ms, data } = event;
  const facts = [...(http ? [`${http.method} ${http.url}`] : []), ...(http?.status ? [`status ${http.status}`] : []), ...(ms === undefined ? [] : [formatMs(ms)]), ...Object.entries(http?.headers ?? {}).map(([name, value]) => `${name}: ${value}`)];
  const payload = data === undefined ? "" : JSON.stringify(data, null, 2);
  const details = facts.length || payload ? `<details><summary dir="auto">${escape(title)}</summary><pre>${escape([...facts, payload].join("\n"))}</pre></details>` : escape(title);
  return `<tr><td>${timeOfDay(Math.round(time))}</td><td>${hop(lane, to)}</td><td>${lane}${to ? ` → ${to}` : ""}</td><td>${escape(kind)}</td><td>${details}</td></tr>`;
}

/** An arrow between two of the four lanes, or a dot in one. */
function hop(lane: Lane, to: Lane = lane): string {
  const [x, target] = [lane, to].map((lane) => 16 + 40 * lanes.indexOf(lane)) as [number, number];
  const grid = lanes.map((_, index) => `<path d="M${16 + 40 * index} 0V16" stroke-opacity=".25"/>`).join("");
  const back = target > x ? -5 : 5;
  const arrow = x === target ? "" : `<path d="M${x} 8H${target}m${back} -4L${target} 8l${back} 4"/>`;
  return `<svg width="152" height="16" fill="none" stroke="currentColor" aria-hidden="true">${grid}<circle cx="${x}" cy="8" r="3" fill="currentColor"/>${arrow}</svg>`;
}

/** Escapes a text for HTML, in elements and in quoted attributes. */
function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
