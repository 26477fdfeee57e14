import type { TimelineEvent } from "./api.js";
import { byId } from "./dom.js";

/** One event as JSON, beside the list it was picked from. */
export class Inspector {
  private readonly panel = byId("inspector");
  private readonly json = byId("json");
  private readonly copy = byId<HTMLButtonElement>("copy");
  private picked: HTMLElement | undefined;

  constructor(private readonly list: HTMLElement) {
    byId("dismiss").onclick = () => this.close();
    this.copy.onclick = () => void this.toClipboard();
    byId("timeline").parentElement!.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.close();
    });
  }

  open(event: TimelineEvent, row: HTMLElement): void {
    this.pick(row);
    byId("inspector-title").textContent = event.title;
    this.json.textContent = JSON.stringify(event, null, 2);
    this.copy.textContent = "Copy JSON";
    this.panel.hidden = false;
    row.scrollIntoView({ block: "nearest" });
  }

  close(): void {
    const { picked } = this;
    if (this.panel.hidden) return;
    const inside = this.panel.contains(document.activeElement);
    this.panel.hidden = true;
    this.pick(undefined);
    if (inside) (picked?.querySelector("button") ?? this.list).focus();
  }

  private pick(row: HTMLElement | undefined): void {
    this.picked?.removeAttribute("aria-current");
    this.picked = row;
    row?.setAttribute("aria-current", "true");
  }

  private async toClipboard(): Promise<void> {
    try {
      await navigator.clipboard.writeText(this.json.textContent ?? "");
      this.copy.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(this.json); // no clipboard here: the next best thing
      this.copy.textContent = "Selected: copy by hand";
    }
  }
}
