import type { TimelineEvent } from "./api.js";
import { byId } from "./dom.js";

interface WorkItemData {
  workItemId?: string;
  callback?: { expiresAt?: string };
}

/** The line below the conversation that counts down to the deadline of the oldest request to the bot. */
export class WaitingLine {
  private readonly deadlines = new Map<string, number>(); // by work item
  private timer: ReturnType<typeof setInterval> | undefined;

  /** Follows the events of the feed. */
  addEvent({ kind, to, title, data }: TimelineEvent): void {
    const { workItemId, callback } = (data ?? {}) as WorkItemData;
    if (kind === "http" && to === "bot" && workItemId && callback?.expiresAt) this.deadlines.set(workItemId, Date.parse(callback.expiresAt));
    else if (title.startsWith("bot_timeout") || title === "bot unreachable") this.deadlines.clear();
    else if (!workItemId || !this.deadlines.delete(workItemId)) return;
    this.show();
  }

  clear(): void {
    this.deadlines.clear();
    this.show();
  }

  private show(): void {
    const [deadline] = this.deadlines.values();
    clearInterval(this.timer);
    if (deadline !== undefined) this.timer = setInterval(() => this.show(), 1_000);
    const seconds = Math.max(0, Math.ceil(((deadline ?? 0) - Date.now()) / 1000));
    byId("waiting").textContent = deadline === undefined ? "" : `Waiting for the bot: ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} until the request times out`;
  }
}
