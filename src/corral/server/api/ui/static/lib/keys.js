// The keyboard: one list of shortcuts, shown by "?". Sequences such as "g j" work like in other tools. Knows no page:
// pages add shortcuts while they are shown.
import { useEffect, useRef } from "./ui.js";

const shortcuts = new Map(); // keys -> { what, run }
let before = "", beforeAt = 0;

export function shortcut(keys, what, run) {
  shortcuts.set(keys, { what, run });
  return () => { if (shortcuts.get(keys)?.run === run) shortcuts.delete(keys); };
}
// A key runs what the page last drew: an effect comes only after the paint, and a key may be faster.
export function useShortcut(keys, what, run) {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => shortcut(keys, what, event => latest.current(event)), [keys, what]);
}
export const allShortcuts = () => [...shortcuts].map(([keys, { what }]) => [keys, what]);

const isTyping = target => target.closest?.("input, textarea, select, [contenteditable], dialog");

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target)) return;
  const sequence = Date.now() - beforeAt < 1200 && before ? `${before} ${event.key}` : event.key;
  const found = shortcuts.get(sequence) || shortcuts.get(event.key);
  before = found ? "" : event.key;
  beforeAt = Date.now();
  if (found) { event.preventDefault(); found.run(event); }
});
