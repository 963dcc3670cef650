// A table for any number of rows: only those in sight are drawn, and they are read in pages as they come into sight.
// Knows rows by their number; where they come from is up to `read(offset, limit)`, which gives { rows, total }.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { Problem } from "../lib/api.js";
import { ProblemNotice } from "./basics.js";

export const ROW = 36, HEAD = 34, PAGE = 100;

// Pages of rows, read on demand; `key` changes when the rows are others altogether.
export function useWindow(read, key) {
  const [, redraw] = useState(0);
  const kept = useRef(null);
  if (!kept.current || kept.current.key !== key) kept.current = { key, pages: new Map(), total: null, asked: new Set(), problem: null, wanted: [0, 40], first: kept.current };
  const here = kept.current;
  const load = async page => {
    if (here.asked.has(page)) return;
    here.asked.add(page);
    try {
      const found = await read(page * PAGE, PAGE);
      here.pages.set(page, found.rows);
      here.total = found.total;
      here.problem = null;
    } catch (problem) { if (problem instanceof Problem) here.problem = problem; } finally { here.asked.delete(page); }
    if (kept.current === here) redraw(n => n + 1);
  };
  const want = (first, last) => {
    here.wanted = [first, last];
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) if (!here.pages.has(page)) load(page);
  };
  const again = () => {
    const [first, last] = here.wanted, seen = new Set();
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) seen.add(page);
    for (const page of [...here.pages.keys()]) if (!seen.has(page)) here.pages.delete(page);
    seen.forEach(load);
  };
  const patch = change => {
    let touched = false;
    for (const rows of here.pages.values()) rows.forEach((row, n) => { const next = change(row); if (next && next !== row) { rows[n] = next; touched = true; } });
    if (touched) redraw(n => n + 1);
    return touched;
  };
  const row = n => here.pages.get(Math.floor(n / PAGE))?.[n % PAGE];
  useEffect(() => { load(0); }, [key]);
  return { row, total: here.total, want, again, patch, problem: here.problem, rows: () => [...here.pages.values()].flat() };
}

// columns: [{ key, title, width, right, sort, draw(row) }]
export function VTable({ columns, view, label, rowKey, sort, descending, onSort, selected, onToggle, onOpen, at, onAt, empty }) {
  const box = useRef(null);
  const [top, setTop] = useState(0), [height, setHeight] = useState(600);
  const total = view.total ?? 0;
  useEffect(() => { const watch = new ResizeObserver(() => box.current && setHeight(box.current.clientHeight)); watch.observe(box.current); return () => watch.disconnect(); }, []);
  const first = Math.max(0, Math.floor(top / ROW) - 6), last = Math.min(total, Math.ceil((top + height) / ROW) + 6);
  useEffect(() => { if (total) view.want(first, Math.max(first, last - 1)); });
  useEffect(() => { if (at !== null && at !== undefined && box.current) { const y = at * ROW; if (y < box.current.scrollTop) box.current.scrollTop = y; else if (y + ROW + HEAD > box.current.scrollTop + height) box.current.scrollTop = y + ROW + HEAD - height; } }, [at]);
  const template = `${onToggle ? "36px " : ""}${columns.map(column => column.width).join(" ")}`;
  const least = `${columns.reduce((sum, column) => sum + Number(/\d+/.exec(column.width)[0]), onToggle ? 36 : 0)}px`; // all rows are as wide as the widest
  const press = event => {
    if (event.target.closest("input, button, a") && !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    if (event.key === "ArrowDown") { event.preventDefault(); onAt?.(Math.min((at ?? -1) + 1, total - 1)); }
    if (event.key === "ArrowUp") { event.preventDefault(); onAt?.(Math.max((at ?? 1) - 1, 0)); }
    if (event.key === "Enter" && view.row(at)) onOpen?.(view.row(at));
    if (event.key === "x" && view.row(at)) onToggle?.(view.row(at));
  };
  const rows = [];
  for (let n = first; n < last; n++) rows.push(n);
  const drawn = n => {
    const row = view.row(n), style = { top: `${HEAD + n * ROW}px`, gridTemplateColumns: template, minWidth: least };
    if (!row) return html`<div class="vrow data" role="row" key=${n} style=${style} aria-rowindex=${n + 2}>${onToggle && html`<span role="cell"></span>`}${columns.map(() => html`<span role="cell"><i class="ghost"></i></span>`)}</div>`;
    const isSelected = selected?.has(row[rowKey]);
    return html`<div class="vrow data ${isSelected ? "selected" : ""} ${n === at ? "at" : ""}" role="row" key=${row[rowKey]} style=${style} aria-rowindex=${n + 2} aria-selected=${onToggle ? String(Boolean(isSelected)) : null} onClick=${() => onAt?.(n)} onDblClick=${() => onOpen?.(row)}>
      ${onToggle && html`<span role="cell"><input type="checkbox" checked=${isSelected} aria-label="Select ${row.id ?? row[rowKey]}" onClick=${event => event.stopPropagation()} onChange=${() => onToggle(row)} /></span>`}
      ${columns.map(column => html`<span role="cell" class=${column.right ? "r num" : ""}>${column.draw(row)}</span>`)}</div>`;
  };
  return html`<div class="vtable"><${ProblemNotice} problem=${view.problem} /><div class="scroller" ref=${box} tabindex="0" role="table" aria-label=${label} aria-rowcount=${total + 1} onScroll=${event => setTop(event.target.scrollTop)} onKeyDown=${press}>
    <div role="rowgroup"><div class="vrow headings" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template, minWidth: least }}>${onToggle && html`<span role="columnheader"><span class="hidden-text">Selected</span></span>`}
      ${columns.map(column => html`<span role="columnheader" class=${column.right ? "r" : ""} aria-sort=${sort === column.sort && column.sort ? (descending ? "descending" : "ascending") : null}>${column.sort ? html`<button type="button" onClick=${() => onSort(column.sort)}>${column.title}${sort === column.sort ? (descending ? " ↓" : " ↑") : ""}</button>` : column.title}</span>`)}</div></div>
    <div role="rowgroup" style=${{ height: `${total * ROW}px` }}>${rows.map(drawn)}</div>${view.total === 0 && empty}</div></div>`;
}
