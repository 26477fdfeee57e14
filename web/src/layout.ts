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

/** Sets up the tabs. On a narrow screen only the column of the selected tab is visible. */
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
