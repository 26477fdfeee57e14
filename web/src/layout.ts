import { byId } from "./dom.js";

/** Sets up the theme selector: light, dark or system. The style sheet uses the color-scheme of the root element. */
export function setUpTheme(): void {
  const theme = byId<HTMLSelectElement>("theme");
  const apply = () => {
    document.documentElement.style.colorScheme = theme.value;
    window.dispatchEvent(new Event("themechange"));
  };
  theme.value = tryStorage(() => localStorage.getItem("theme")) ?? "light dark";
  theme.onchange = () => {
    tryStorage(() => localStorage.setItem("theme", theme.value));
    apply();
  };
  apply();
}

/** Returns the result of an operation on local storage, or undefined if the browser blocks it. */
function tryStorage<Value>(operation: () => Value): Value | undefined {
  try {
    return operation();
  } catch {
    return undefined;
  }
}

/** On a narrow screen the conversation is a tab; on a wide one it is always visible, next to the panels. */
const narrow = matchMedia("(max-width: 1023px)");
const tabs = () => [...document.querySelectorAll<HTMLButtonElement>("[role=tab]")];

/** Sets up the tabs. The arrow keys, Home and End move between them. */
export function setUpTabs(): void {
  for (const tab of tabs()) {
    tab.hidden = tab.dataset.tab !== "talk" && !byId(`tab-${tab.dataset.tab}`).childElementCount;
    tab.onclick = () => showTab(tab.dataset.tab!);
  }
  byId("tabs").onkeydown = (event) => {
    const visible = tabs().filter(({ offsetWidth }) => offsetWidth);
    const index = visible.indexOf(document.activeElement as HTMLButtonElement);
    const target = { ArrowLeft: index - 1, ArrowRight: (index + 1) % visible.length, Home: 0, End: -1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const tab = visible.at(target)!;
    tab.focus();
    showTab(tab.dataset.tab!);
  };
  narrow.onchange = () => {
    if (!narrow.matches && document.querySelector("main")!.dataset.tab === "talk") showTab("timeline");
  };
  showTab(narrow.matches ? "talk" : "timeline");
}

/** Shows the turns of a call that has ended, unless the conversation is a tab of its own. */
export function showTurnsAfterCall(): void {
  if (!narrow.matches && !byId("voice-chart").hidden) showTab("turns");
}

/** Shows a panel: the element with the ID tab-NAME. */
export function showTab(name: string): void {
  document.querySelector("main")!.dataset.tab = name;
  for (const tab of tabs()) {
    const selected = tab.dataset.tab === name;
    tab.ariaSelected = String(selected);
    tab.tabIndex = selected ? 0 : -1;
    if (selected) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  for (const panel of document.querySelectorAll<HTMLElement>("[role=tabpanel]")) panel.hidden = panel.id !== `tab-${name}`;
  window.dispatchEvent(new Event("resize"));
}
