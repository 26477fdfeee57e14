import type { TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";

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

/** Shows the selected event as JSON. */
export class Inspector {
  private readonly panel = byId("inspector");
  private selected: HTMLElement | undefined;

  constructor(private readonly list: HTMLElement) {
    byId("dismiss").onclick = () => this.close();
    byId("timeline").parentElement!.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.close();
    });
  }

  open(event: TimelineEvent, row: HTMLElement): void {
    this.select(row);
    byId("inspector-title").textContent = event.title;
    byId("json").textContent = JSON.stringify(event, null, 2);
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

function actionButton({ label, run }: Action, event: TimelineEvent): HTMLElement {
  const button = make("button", { type: "button" }, label);
  button.onclick = async () => {
    const text = await run(event);
    if (typeof text === "string") button.textContent = text;
  };
  return button;
}
