import type { Exchange, TimelineEvent } from "./api.js";
import { byId, make, timeOfDay } from "./dom.js";
import { formatMs } from "./turns.js";

/** A button of the inspector. */
interface Action {
  label: string;
  applies(event: TimelineEvent): boolean;
  run(event: TimelineEvent): unknown;
}

const actions: Action[] = [];

/**
 * Adds a button to the inspector. It is shown for the events to which it applies. If run returns a text or a promise of
 * one, the button shows it instead of its label.
 */
export function addInspectorAction(label: string, applies: Action["applies"], run: Action["run"]): void {
  actions.push({ label, applies, run });
}

/** Copies a text to the clipboard, or selects it in the element that shows it if the browser denies access. */
export async function copyText(text: string, shownIn: HTMLElement): Promise<string> {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    shownIn.textContent = text;
    getSelection()?.selectAllChildren(shownIn);
    return "Selected: copy by hand";
  }
}

addInspectorAction("Copy JSON", () => true, (event) => copyText(JSON.stringify(event, null, 2), byId("json")));
addInspectorAction("Copy as curl", ({ http }) => !!http && !http.status, ({ http, data, sessionId }) => copyText(curlOf(http!, data, notesOn(http!, sessionId)), byId("json")));

/** Whether an event is a callback, whose token is used up. */
export function needsCallbackToken({ http }: TimelineEvent): boolean {
  return !!http && !http.status && Object.values(http.headers ?? {}).includes("$CALLBACK_TOKEN");
}

/** Says where the secrets of a command come from. */
function notesOn({ headers }: Exchange, sessionId: string): string[] {
  const values = Object.values(headers ?? {});
  return [
    ...(values.includes("$CALLBACK_TOKEN") ? [`The token of this callback is used up. Set CALLBACK_TOKEN to one that this command prints: telapi callback issue --channel ${sessionId}`] : []),
    ...(values.includes("$API_KEY") ? ["Set API_KEY to the key of the team."] : []),
  ];
}

/** The command that repeats a request, after notes as comments. Secrets are environment variables, such as $CALLBACK_TOKEN. */
export function curlOf({ method, url, headers }: Exchange, body: unknown, notes: string[] = []): string {
  const words = ["curl", "-X", method, quote(url)];
  for (const [name, value] of Object.entries(headers ?? {})) words.push("-H", /^\$\w+$/.test(value) ? `"${name}: ${value}"` : quote(`${name}: ${value}`));
  if (body !== undefined && body !== null) words.push("--data-raw", quote(JSON.stringify(body)));
  return [...notes.map((note) => `# ${note}`), words.join(" ")].join("\n");
}

/** Quotes a word for a POSIX shell. */
function quote(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Shows the selected event: its facts and its payload. */
export class Inspector {
  private readonly panel = byId("inspector");
  private selected: HTMLElement | undefined;

  constructor(private readonly list: HTMLElement) {
    byId("dismiss").onclick = () => this.close();
    byId("timeline").closest("section")!.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.close();
    });
  }

  get isOpen(): boolean {
    return !this.panel.hidden;
  }

  open(event: TimelineEvent, row: HTMLElement): void {
    this.select(row);
    byId("inspector-title").textContent = event.title;
    byId("facts").replaceChildren(...factsOf(event).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    byId("json").textContent = event.data === undefined ? "No payload." : JSON.stringify(event.data, null, 2);
    byId("inspector-actions").replaceChildren(...actions.filter(({ applies }) => applies(event)).map((action) => actionButton(action, event)));
    this.panel.hidden = false;
    row.scrollIntoView({ block: "nearest" });
  }

  close(): void {
    const { selected } = this;
    if (this.panel.hidden) return;
    const inside = this.panel.contains(document.activeElement);
    this.panel.hidden = true;
    this.select(undefined);
    if (inside) (selected?.querySelector("button") ?? this.list).focus();
  }

  private select(row: HTMLElement | undefined): void {
    this.selected?.removeAttribute("aria-current");
    this.selected = row;
    row?.setAttribute("aria-current", "true");
  }
}

/** Whose clock gives the time of an event, by its source. */
const clocks: Record<string, string> = { page: "browser", entries: "service", messages: "key-value store", demo: "demo" };

/** The facts that an event has, with their names. */
function factsOf({ at, lane, to, source, ms, http, parts }: TimelineEvent): [string, string][] {
  const facts: [string, string][] = [
    ["route", to ? `${lane} → ${to}` : lane],
    ["time", `${timeOfDay(at)} by the clock of the ${clocks[source?.replace(/-.*/, "") ?? ""] ?? "sender"}`],
  ];
  if (http) facts.push(["request", `${http.method} ${http.url}`]);
  if (http?.status) facts.push(["status", String(http.status)]);
  if (ms !== undefined) facts.push([http?.status ? "latency" : `in ${lane}`, formatMs(ms)]);
  if (parts) facts.push(["parts", `${parts.count}, in ${formatMs(parts.until - at)}; this is the newest`]);
  for (const [name, value] of Object.entries(http?.headers ?? {})) facts.push([name, value]);
  return facts;
}

function actionButton({ label, run }: Action, event: TimelineEvent): HTMLElement {
  const button = make("button", { type: "button" }, label);
  button.onclick = async () => {
    const text = await run(event);
    if (typeof text === "string") button.textContent = text;
  };
  return button;
}
