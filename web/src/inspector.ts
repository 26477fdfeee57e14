import type { TimelineEvent } from "./api.js";
import { byId } from "./dom.js";

/** Shows the selected event as JSON. */
export class Inspector {
  private readonly panel = byId("inspector");
  private readonly json = byId("json");
  private readonly copy = byId<HTMLButtonElement>("copy");
  private selected: HTMLElement | undefined;

  constructor(private readonly list: HTMLElement) {
    byId("dismiss").onclick = () => this.close();
    this.copy.onclick = () => void this.copyToClipboard();
    byId("timeline").parentElement!.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.close();
    });
  }

  open(event: TimelineEvent, row: HTMLElement): void {
    this.select(row);
    byId("inspector-title").textContent = event.title;
    this.json.textContent = JSON.stringify(event, null, 2);
    this.copy.textContent = "Copy JSON";
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

  private async copyToClipboard(): Promise<void> {
    try {
      await navigator.clipboard.writeText(this.json.textContent ?? "");
      this.copy.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(this.json); // no clipboard access
      this.copy.textContent = "Selected: copy by hand";
    }
  }
}
