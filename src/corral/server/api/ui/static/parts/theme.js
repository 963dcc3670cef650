// Light, dark, or as the system: chosen by the viewer and kept in this browser.
import { signal, effect } from "../lib/ui.js";

const system = matchMedia("(prefers-color-scheme: dark)");
export const choice = signal(read());
export const theme = signal("light");

function read() { try { return localStorage.getItem("corral-theme") || "system"; } catch { return "system"; } }

export function toggle() {
  choice.value = theme.value === "dark" ? "light" : "dark";
  try { localStorage.setItem("corral-theme", choice.value); } catch { /* not kept: private mode */ }
}

const apply = () => {
  theme.value = choice.value === "system" ? (system.matches ? "dark" : "light") : choice.value;
  document.documentElement.dataset.theme = theme.value;
};
effect(apply);
system.addEventListener("change", apply);
