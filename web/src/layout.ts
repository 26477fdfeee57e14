import { byId } from "./dom.js";

/** Sets up the theme selector: light, dark or system. The style sheet follows the root's color-scheme. */
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

/** Uses local storage; returns undefined if the browser blocks it. */
function tryStorage<Value>(use: () => Value): Value | undefined {
  try {
    return use();
  } catch {
    return undefined;
  }
}

/** Sets up the tabs: a narrow page shows one column at a time. */
export function setUpTabs(): void {
  const tabs = document.querySelectorAll<HTMLButtonElement>("nav button");
  for (const tab of tabs) {
    tab.onclick = () => {
      document.querySelector("main")!.dataset.tab = tab.dataset.tab;
      for (const other of tabs) other.ariaPressed = String(other === tab);
      window.dispatchEvent(new Event("resize"));
    };
  }
}
