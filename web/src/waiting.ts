import type { TimelineEvent, Waiting, WaitingItem } from "./api.js";
import { byId, make, timeOfDay } from "./dom.js";

interface WorkItemData {
  workItemId?: string;
  callback?: { expiresAt?: string };
}

/** What a session waits for until its feed says more. */
export const nothing: Waiting = { forRuntime: false, workItems: [] };

/** What the page does about a session that waits. */
export interface WaitingActions {
  cancel(workItemId: string): Promise<void>;
  /** The command that starts a runtime, with or without the key. */
  command(withKey: boolean): string;
}

/** The lines below the conversation: what the session waits for, why, and what the user can do. */
export class WaitingPanel {
  private readonly deadlines = new Map<string, number>(); // of requests to the bot, by work item
  private readonly requested = new Map<string, number>(); // when a work item was requested
  private timer: ReturnType<typeof setInterval> | undefined;
  private shown = "";

  constructor(private readonly actions: WaitingActions) {}

  /** Follows the events of the feed. */
  addEvent({ at, kind, to, title, data }: TimelineEvent): void {
    if (kind === "waiting") return this.showReasons(data as Waiting);
    const { workItemId, callback } = (data ?? {}) as WorkItemData;
    if (kind === "http" && to === "bot" && workItemId && callback?.expiresAt) {
      this.deadlines.set(workItemId, Date.parse(callback.expiresAt));
      this.requested.set(workItemId, at);
    } else if (title.startsWith("bot_timeout")) this.deadlines.clear();
    else if (!workItemId || !this.deadlines.delete(workItemId)) return;
    this.countDown();
  }

  clear(): void {
    this.deadlines.clear();
    this.requested.clear();
    this.countDown();
    this.showReasons(nothing);
  }

  /** Counts down to the deadline of the oldest request to the bot. */
  private countDown(): void {
    const [deadline] = this.deadlines.values();
    clearInterval(this.timer);
    if (deadline !== undefined) this.timer = setInterval(() => this.countDown(), 1_000);
    const seconds = Math.max(0, Math.ceil(((deadline ?? 0) - Date.now()) / 1000));
    byId("waiting").textContent = deadline === undefined ? "" : `Waiting for the bot: ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} until the request times out`;
  }

  showReasons({ forRuntime, workItems }: Waiting): void {
    const state = JSON.stringify([forRuntime, workItems]);
    if (state === this.shown) return; // keeps the focus
    this.shown = state;
    // Results are delivered in order, so the first item without one blocks all that follow.
    const blocking = (workItems ?? []).find(({ parked }) => !parked);
    const parked = (workItems ?? []).filter((item) => item.parked);
    for (const { id } of parked) this.deadlines.delete(id); // the bot has answered
    this.countDown();
    byId("waiting-reasons").replaceChildren(...(forRuntime ? [this.noRuntime()] : []), ...(blocking && parked.length ? [this.parked(parked, blocking)] : []));
  }

  private noRuntime(): HTMLElement {
    const copy = make("button", { type: "button" }, "Copy command");
    copy.onclick = () => navigator.clipboard.writeText(this.actions.command(true)).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "The browser denies it"));
    return make("div", { class: "reason" }, make("p", {}, "No runtime has claimed this session. Start one, unless those that run have no free slot:"), make("code", {}, this.actions.command(false)), copy);
  }

  private parked(parked: WaitingItem[], blocking: WaitingItem): HTMLElement {
    const [id, registered, expires] = [short(blocking.id), this.requested.get(blocking.id) ?? blocking.registeredAt, blocking.expiresAt];
    const cancel = make("button", { type: "button" }, `Cancel work item ${id}`);
    cancel.onclick = () => {
      cancel.disabled = true;
      void this.actions.cancel(blocking.id).finally(() => (cancel.disabled = false));
    };
    const subject = parked.length === 1 ? `Work item ${short(parked[0]!.id)} is answered, waits` : `${parked.length} work items are answered, wait`;
    const [since, until] = [registered, expires].map((at) => timeOfDay(at).slice(0, 8));
    return make("div", { class: "reason" }, make("p", {}, `${subject} for work item ${id} (registered ${since}, expires ${until}).`), cancel);
  }
}

/** The first characters of an ID. */
function short(id: string): string {
  return id.length > 10 ? `${id.slice(0, 8)}…` : id;
}
