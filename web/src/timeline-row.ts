import type { Lane, TimelineEvent } from "./api.js";
import { make } from "./dom.js";

export const lanes: Lane[] = ["browser", "service", "runtime", "bot"];

/** The badge of an event: a decision, or that a callback was parked. */
function badgeOf({ kind, lane, title, ids }: TimelineEvent): string {
  if (kind === "denied") return "denied";
  if (kind === "command" && lane === "service") return "allowed";
  if (ids?.some((id) => id.startsWith("parked:"))) return "parked";
  if (kind === "callback" && lane === "service" && /^[45]/.test(title)) return "rejected";
  return kind === "frame" && title.startsWith("error") ? "rejected" : "";
}

/** Creates the row of an event. */
export function renderRow(event: TimelineEvent): HTMLElement {
  const { lane, to, kind, title } = event;
  const [source, target] = [lanes.indexOf(lane), lanes.indexOf(to ?? lane)];
  const arrow = make("i", { "data-lane": lane, "data-direction": source === target ? "none" : source < target ? "right" : "left" });
  arrow.style.gridColumn = `${Math.min(source, target) + 1} / ${Math.max(source, target) + 2}`;
  arrow.style.setProperty("--lanes", String(Math.abs(source - target) + 1));
  const button = make(
    "button",
    { type: "button", tabindex: "-1" },
    make("time"),
    make("span", { class: "hop" }, arrow),
    make("span", { class: "kind" }, make("span", { class: "route" }, to ? `${lane} to ${to}: ` : `${lane}: `), kind),
    make("span", { class: "title" }, title),
  );
  const item = make("li", { "data-kind": kind }, button);
  setBadge(item, badgeOf(event));
  return item;
}

/** Shows a badge before the title of a row. A row has one badge. */
export function setBadge(item: HTMLElement, badge: string): void {
  if (!badge || item.dataset.badge) return;
  item.dataset.badge = badge;
  item.querySelector(".title")!.prepend(make("strong", { "data-decision": badge }, badge), " ");
}
