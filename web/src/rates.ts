import { byId } from "./dom.js";

const intervalMs = 4_000;

/** Counts of the service at one time. */
interface Sample {
  at: number;
  sessions: number;
  frames: number;
  callbacks: number;
}

/** Adds up the samples of a metric in the Prometheus text format, over all labels. */
export function sum(exposition: string, metric: string): number {
  let total = 0;
  for (const [, value] of exposition.matchAll(new RegExp(`^${metric}(?:\\{.*\\})? (\\S+)`, "gm"))) total += Number(value);
  return total;
}

/** Shows the sessions of the service, and its frames and callbacks per second, while the page is visible. The function returns its metrics, or nothing if they are not accessible. */
export function showRates(metrics: () => Promise<string | undefined>): void {
  let previous: Sample | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const poll = async () => {
    clearTimeout(timer);
    if (document.hidden) {
      previous = undefined; // a rate over the time in the background says nothing
      return;
    }
    const exposition = await metrics().catch(() => ""); // the service is down
    if (exposition === undefined) return;
    const sample = exposition && read(exposition);
    if (sample && previous && sample.frames >= previous.frames) show(previous, sample); // fewer: an instance was stopped
    if (!sample) byId("rates").textContent = ""; // they are outdated
    previous = sample || undefined;
    timer = setTimeout(() => void poll(), previous ? intervalMs : intervalMs / 4);
  };
  document.addEventListener("visibilitychange", () => void poll());
  void poll();
}

function read(exposition: string): Sample {
  return {
    at: performance.now(),
    sessions: sum(exposition, "telapi_sessions_claimed") + sum(exposition, "telapi_sessions_waiting"),
    frames: sum(exposition, "telapi_frames_total"),
    callbacks: sum(exposition, "telapi_callbacks_total"),
  };
}

function show(previous: Sample, { at, sessions, frames, callbacks }: Sample): void {
  const seconds = (at - previous.at) / 1000;
  const rate = (count: number) => (count / seconds).toFixed(1);
  byId("rates").textContent = `${sessions} ${sessions === 1 ? "session" : "sessions"} · ${rate(frames - previous.frames)} frames/s · ${rate(callbacks - previous.callbacks)} callbacks/s`;
}
