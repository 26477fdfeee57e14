import { byId, download, make, timeOfDay } from "./dom.js";
import { createTrace, type Trace } from "./export.js";
import { addInspectorAction, copyText } from "./inspector.js";
import { showTab } from "./layout.js";
import { showRecordings } from "./player.js";
import { exportRecording, type Recording } from "./recorder.js";
import type { Timeline } from "./timeline.js";

/** A session of this browser, as it is stored. */
interface SavedTrace {
  sessionId: string;
  startedAt: number;
  title: string; // what was said first
  summary: string; // endpoint and mode
  trace: Trace;
}

/** A recording of a call, as it is stored. */
interface SavedRecording extends Recording {
  id: string;
  sessionId: string;
}

const saveMs = 3_000;
const maxSessions = 50;
/** Of all recordings together. The oldest ones are deleted. */
const maxRecordingBytes = 100 * 1024 * 1024;

/** The history panel: the timelines and recordings of earlier sessions, which stay in this browser. Timelines contain no credentials. */
export class HistoryPanel {
  private readonly search = byId<HTMLInputElement>("history-search");
  private readonly database = open();
  private sessions: SavedTrace[] = []; // the newest first
  private recordings: SavedRecording[] = []; // the oldest first
  private readonly players = new Map<string, { ids: string; element: HTMLElement }>(); // by session
  private saved = ""; // the session that was saved last, and its number of events

  constructor(private readonly timeline: Timeline) {
    this.search.oninput = () => this.show();
    byId("history-clear").onclick = () => void this.delete(this.sessions.map(({ sessionId }) => sessionId));
    setInterval(() => void this.save(), saveMs);
    addEventListener("pagehide", () => void this.save());
    addInspectorAction("Copy link", ({ source, seq }) => !!source && !!seq, ({ source, seq }) =>
      copyText(`${location.origin}${location.pathname}#session=${this.timeline.content().sessionId}&event=${source}:${seq}`, byId("json")));
    addEventListener("hashchange", () => this.openLink());
    void this.load().then(() => this.openLink());
  }

  /** Stores the timeline of the session, if there is something new. A trace that is shown is stored already. */
  async save(): Promise<void> {
    const { sessionId, clockOffset, entries, isTrace } = this.timeline.content();
    const state = `${sessionId} ${entries.reduce((sum, { event }) => sum + (event.parts?.count ?? 1), 0)}`;
    if (isTrace || !sessionId || this.saved === state) return;
    this.saved = state;
    const said = entries.find(({ event }) => /^chat: /.test(event.title) && event.lane === "browser")?.event.title.slice(6);
    const trace = createTrace(sessionId, clockOffset, entries.map(({ event }) => event));
    const session: SavedTrace = { sessionId, startedAt: entries[0]?.time ?? Date.now(), title: said ?? "", summary: byId("session-summary").textContent ?? "", trace };
    const known = this.sessions.findIndex((other) => other.sessionId === sessionId);
    if (known >= 0) this.sessions[known] = session; // at once: it can be saved again while this is written
    else this.sessions.unshift(session);
    await this.request("sessions", "readwrite", (store) => store.put(session));
    if (known < 0 || byId("tab-history").hidden) this.show(); // otherwise the focus would be lost
    if (this.sessions.length > maxSessions) await this.forget(this.sessions.slice(maxSessions).map(({ sessionId }) => sessionId));
  }

  /** Stores a recording of the session. Shows it when it is complete. */
  async addRecording(sessionId: string, recording: Recording, complete: boolean): Promise<void> {
    const saved = { ...recording, id: `${sessionId} ${recording.startedAt}`, sessionId };
    await this.request("recordings", "readwrite", (store) => store.put(saved));
    if (!complete) return;
    this.recordings.push(saved);
    let bytes = this.recordings.reduce((sum, { blob }) => sum + blob.size, 0);
    await this.deleteRecordings(this.recordings.filter(({ blob }) => bytes > maxRecordingBytes && (bytes -= blob.size)));
    this.show();
  }

  private async deleteRecordings(recordings: SavedRecording[]): Promise<void> {
    this.recordings = this.recordings.filter((recording) => !recordings.includes(recording));
    for (const { id } of recordings) await this.request("recordings", "readwrite", (store) => store.delete(id));
  }

  private recordingsOf(session: string): SavedRecording[] {
    return this.recordings.filter(({ sessionId }) => sessionId === session);
  }

  private async load(): Promise<void> {
    const all = async (store: string) => ((await this.request(store, "readonly", (store) => store.getAll())) ?? []) as unknown[];
    this.sessions = ((await all("sessions")) as SavedTrace[]).sort((a, b) => b.startedAt - a.startedAt);
    this.recordings = ((await all("recordings")) as SavedRecording[]).sort((a, b) => a.startedAt - b.startedAt);
    await this.deleteRecordings(this.recordings.filter(({ sessionId }) => !this.sessions.some((session) => session.sessionId === sessionId)));
    this.show();
  }

  private async delete(ids: string[]): Promise<void> {
    if (!ids.length) return;
    await this.forget(ids);
    this.show();
    this.search.focus();
  }

  private async forget(ids: string[]): Promise<void> {
    this.sessions = this.sessions.filter(({ sessionId }) => !ids.includes(sessionId));
    await this.deleteRecordings(ids.flatMap((id) => this.recordingsOf(id)));
    for (const id of ids) {
      this.playersOf(id); // unloads them
      this.players.delete(id);
      await this.request("sessions", "readwrite", (store) => store.delete(id));
    }
  }

  /** Runs one request. Returns nothing if the browser blocks the storage. */
  private async request(store: string, mode: IDBTransactionMode, run: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
    try {
      return await promiseOf(run((await this.database).transaction(store, mode).objectStore(store)));
    } catch {
      return undefined;
    }
  }

  private show(): void {
    const text = this.search.value.trim().toLowerCase();
    const found = this.sessions.filter((session) => !text || JSON.stringify(session).toLowerCase().includes(text));
    byId("history-count").textContent = `${found.length} of ${this.sessions.length} sessions`;
    byId("history-list").replaceChildren(...found.map((session) => this.row(session)));
  }

  private row({ sessionId, startedAt, title, summary, trace }: SavedTrace): HTMLElement {
    const name = `${new Date(startedAt).toLocaleDateString("en-CA")} ${timeOfDay(Math.round(startedAt)).slice(0, 8)}`;
    const action = (label: string, run: () => void) => {
      const button = make("button", { type: "button", "aria-label": `${label} the session of ${name}` }, label);
      button.onclick = run;
      return button;
    };
    return make(
      "li",
      { class: "row" },
      make("span", {}, make("strong", {}, name), ` ${summary}, ${trace.events.filter(({ kind }) => kind !== "mark").length} events`, ...(title ? [make("q", { dir: "auto" }, title)] : []), make("code", {}, sessionId)),
      action("Open", () => void this.withRecordings(trace).then((trace) => this.open(trace))),
      action("Export", () => void this.withRecordings(trace).then((trace) => download(JSON.stringify(trace, null, 1), `telapi-trace-${sessionId}.json`))),
      action("Delete", () => void this.delete([sessionId])),
      this.playersOf(sessionId),
    );
  }

  /** The recordings of a session. The element stays the same while they do, so that playing goes on when the list is shown again. */
  private playersOf(sessionId: string): HTMLElement {
    const recordings = this.recordingsOf(sessionId);
    const ids = recordings.map(({ id }) => id).join();
    const known = this.players.get(sessionId) ?? { ids: "", element: make("div", { class: "recordings" }) };
    this.players.set(sessionId, { ...known, ids });
    if (known.ids !== ids) {
      showRecordings(known.element, recordings, (recording) => {
        void this.deleteRecordings([recording as SavedRecording]).then(() => this.show());
        this.search.focus();
      });
    }
    return known.element;
  }

  private async withRecordings(trace: Trace): Promise<Trace> {
    const recordings = await Promise.all(this.recordingsOf(trace.sessionId).map(exportRecording));
    return recordings.length ? { ...trace, recordings } : trace;
  }

  private open(trace: Trace): void {
    this.timeline.openTrace(trace);
    showTab("timeline");
  }

  /** Opens the event of a link, in the session that is shown or in the history. */
  private openLink(): void {
    const link = new URLSearchParams(location.hash.slice(1));
    const [, source, seq] = /^(.+):(\d+)$/.exec(link.get("event") ?? "") ?? [];
    if (!source) return;
    const saved = this.sessions.find(({ sessionId }) => sessionId === link.get("session"));
    if (this.timeline.content().sessionId !== link.get("session") && saved) this.timeline.openTrace(saved.trace);
    showTab("timeline");
    this.timeline.reveal(source, Number(seq));
  }
}

function open(): Promise<IDBDatabase> {
  const request = indexedDB.open("telapi-playground-history", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("sessions", { keyPath: "sessionId" });
    request.result.createObjectStore("recordings", { keyPath: "id" });
  };
  const opened = promiseOf(request);
  opened.catch(() => {}); // each use reports it
  return opened;
}

function promiseOf<Result>(request: IDBRequest<Result>): Promise<Result> {
  return new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error!);
  });
}
