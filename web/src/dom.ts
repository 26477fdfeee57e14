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
