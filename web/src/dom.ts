/** The element with this ID. Throws if it is missing. */
export function byId<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  const found = document.getElementById(id);
  if (!found) throw new Error(`Element #${id} not found.`);
  return found as Kind;
}

/** Creates an element. Strings become text nodes and are never parsed as HTML. */
export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Record<string, string> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Saves a text as a file. */
export function download(text: string, name: string, type = "application/json"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Opens a popover below its button. */
export function placeBelow(popover: HTMLElement, button: HTMLElement): void {
  popover.addEventListener("beforetoggle", () => {
    const { bottom, left, right } = button.getBoundingClientRect();
    popover.style.top = `${bottom + 4}px`;
    popover.style.left = left < innerWidth / 2 ? `${left}px` : "auto";
    popover.style.right = left < innerWidth / 2 ? "auto" : `${innerWidth - right}px`;
  });
}

/** Changes a scrollable list and keeps it scrolled to the end if it was there. */
export function keepScrolledToEnd(list: HTMLElement, change: () => void): void {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

/** Formats a Unix time in milliseconds as time of day with milliseconds. */
export function timeOfDay(at: number): string {
  return new Date(at).toTimeString().slice(0, 8) + "." + String(at % 1000).padStart(3, "0");
}
