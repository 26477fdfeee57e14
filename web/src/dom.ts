/** The element of the page with this id; the page has it, or the page is broken. */
export function byId<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no #${id}.`);
  return found as Kind;
}

/** A new element. Children that are texts stay texts: nothing from the line is read as HTML. */
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

/** Adds to the end of a list that people scroll, and stays at its end for those who are there. */
export function keepingTheEnd(list: HTMLElement, change: () => void): void {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

/** A clock time with milliseconds. */
export function clock(at: number): string {
  return new Date(at).toTimeString().slice(0, 8) + "." + String(at % 1000).padStart(3, "0");
}
