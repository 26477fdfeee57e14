import type { Session } from "@telapi/sdk";

const intervalMs = 1_000;
/** For how long the page tries to connect in this interval after the service was down. It can be healthy before it accepts connections. */
const startMs = 15_000;

/** Reconnects as soon as the service is healthy again after it was down, instead of at the next attempt. */
export function reconnectWhenHealthy(session: Session): void {
  let timer: ReturnType<typeof setInterval> | undefined;
  let downAt = -Infinity; // when it was last seen; a service that was not down has another reason to reject
  const check = async () => {
    const healthy = await fetch("/health").then(({ ok }) => ok, () => false);
    if (session.state !== "waiting") return;
    if (!healthy) downAt = performance.now();
    else if (performance.now() - downAt < startMs) session.resume();
  };
  session.on("state", ({ state }) => {
    if (state === "connected" || state === "ended") {
      clearInterval(timer);
      timer = undefined;
      downAt = -Infinity;
    } else if (state === "waiting" && timer === undefined) {
      timer = setInterval(() => void check(), intervalMs);
      void check(); // it may be down for less than the interval
    }
  });
}
