import { byId } from "./dom.js";

/** Light, dark, or what the system wants; remembered. The style sheet goes by the root's color-scheme. */
export function chooseTheme(): void {
  const theme = byId<HTMLSelectElement>("theme");
  const apply = () => {
    document.documentElement.style.colorScheme = theme.value;
    window.dispatchEvent(new Event("themechange"));
  };
  theme.value = remembered(() => localStorage.getItem("theme")) ?? "light dark";
  theme.onchange = () => {
    remembered(() => localStorage.setItem("theme", theme.value));
    apply();
  };
  apply();
}

/** What the browser remembers, unless its owner forbade it to. */
function remembered<Value>(use: () => Value): Value | undefined {
  try {
    return use();
  } catch {
    return undefined;
  }
}

/** Where the page is narrow, one column at a time is shown. */
export function chooseTabs(): void {
  const tabs = document.querySelectorAll<HTMLButtonElement>("nav button");
  for (const tab of tabs) {
    tab.onclick = () => {
      document.querySelector("main")!.dataset.tab = tab.dataset.tab;
      for (const other of tabs) other.ariaPressed = String(other === tab);
      window.dispatchEvent(new Event("resize"));
    };
  }
}
