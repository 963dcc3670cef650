// The map: every GPU as a square, by its place in the topology, on one canvas. Draws 10,000 of them in a few
// milliseconds; zoom with the wheel or the keys + and -, move by dragging or with the arrow keys. Knows cells and colours.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { theme } from "./theme.js";

const CELL = 12, GAP = 2, PAD = 10, TITLE = 18, NAMED = 120, SCALE_MAX = 2.2;

// Where each node is: blocks for the innermost domain, side by side, wrapped to the width.
export function layout(cells, width) {
  const groups = new Map();
  for (const cell of cells) { const key = cell.path.join(" / "); if (!groups.has(key)) groups.set(key, []); groups.get(key).push(cell); }
  const blocks = [], names = cells.length <= NAMED ? Math.min(96, 7 * Math.max(...cells.map(cell => cell.name.length)) + 6) : 0; // room for them
  for (const [title, list] of groups) {
    const gpus = Math.max(1, ...list.map(cell => cell.gpus.length)), one = names + gpus * (CELL + GAP) + 14, head = title ? TITLE : 8;
    const across = groups.size === 1 ? Math.min(list.length, Math.max(1, Math.floor((width - 2 * PAD) / one))) : 1;
    const perColumn = Math.ceil(list.length / across), w = across * one + PAD, h = perColumn * (CELL + 4) + head + PAD;
    blocks.push({ title, list, one, head, across, perColumn, w, h });
  }
  let x = PAD, y = PAD, tall = 0;
  const wide = Math.max(width, Math.sqrt(blocks.reduce((sum, block) => sum + block.w * block.h, 0)) * 1.5);
  const places = [];
  for (const block of blocks) {
    if (x > PAD && x + block.w > wide) { x = PAD; y += tall + 8; tall = 0; }
    block.x = x; block.y = y;
    block.list.forEach((cell, n) => places.push({ cell, x: x + names + (n % block.across) * block.one, y: y + block.head + Math.floor(n / block.across) * (CELL + 4) }));
    x += block.w + 8; tall = Math.max(tall, block.h);
  }
  return { blocks, places, names, width: Math.max(...blocks.map(block => block.x + block.w)) + PAD, height: y + tall + PAD };
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function MapCanvas({ cells, colour, selected, onSelect, tip, height: tallest = 560 }) {
  const canvas = useRef(null), view = useRef({ x: 0, y: 0, scale: 0 }), drag = useRef(null);
  const [hover, setHover] = useState(null), [width, setWidth] = useState(900);
  const plan = useRef(null);
  const key = `${width}|${cells.map(cell => cell.name).join()}`;
  if (plan.current?.key !== key) { plan.current = { key, ...layout(cells, width) }; view.current.scale = 0; }
  const height = Math.min(tallest, Math.max(90, Math.ceil(plan.current.height * Math.min(SCALE_MAX, width / plan.current.width))));
  const fit = () => { const { width: w, height: h } = plan.current; const scale = Math.min(width / w, Math.max(height / h, 0.15), SCALE_MAX); view.current = { scale, x: 0, y: 0 }; };
  if (!view.current.scale) fit();
  const draw = () => {
    const element = canvas.current;
    if (!element) return;
    const ratio = devicePixelRatio || 1, context = element.getContext("2d"), { scale, x, y } = view.current;
    if (element.width !== width * ratio) { element.width = width * ratio; }
    if (element.height !== height * ratio) { element.height = height * ratio; }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const text = css("--text"), dim = css("--dim"), line = css("--line"), mark = css("--text"), known = new Map();
    const paint = name => { if (!known.has(name)) known.set(name, name.startsWith("--") ? css(name) : name); return known.get(name); };
    const size = CELL * scale, step = (CELL + GAP) * scale;
    for (const block of plan.current.blocks) {
      const left = block.x * scale + x, up = block.y * scale + y;
      if (left > width || up > height || left + block.w * scale < 0 || up + block.h * scale < 0) continue;
      context.strokeStyle = line; context.lineWidth = 1; context.strokeRect(left - 4.5, up - 2.5, block.w * scale, block.h * scale);
      if (block.title && scale > 0.45) { context.fillStyle = dim; context.font = `${Math.min(12, 11 * Math.max(scale, 0.8))}px system-ui, sans-serif`; context.fillText(block.title, left, up + 11 * Math.max(scale, 0.7), block.w * scale - 8); }
    }
    for (const { cell, x: cx, y: cy } of plan.current.places) {
      const left = cx * scale + x, up = cy * scale + y;
      if (up > height || up + size < 0 || left > width || left + cell.gpus.length * step < 0) continue;
      if (plan.current.names && scale > 0.6) { context.fillStyle = text; context.font = `${Math.min(13, 11 * scale)}px system-ui, sans-serif`; context.fillText(cell.name, left - plan.current.names * scale, up + size / 2 + 4, (plan.current.names - 6) * scale); }
      for (let n = 0; n < cell.gpus.length; n++) {
        context.fillStyle = paint(colour(cell, n));
        context.fillRect(left + n * step, up, size, size);
        const letter = cell.gpus[n];
        if (size > 5 && (letter === "s" || letter === "l" || letter === "h")) {
          context.strokeStyle = mark; context.lineWidth = Math.max(1, size / 9); context.beginPath();
          context.moveTo(left + n * step + size * 0.25, up + size * 0.75); context.lineTo(left + n * step + size * 0.75, up + size * 0.25);
          if (letter !== "h") { context.moveTo(left + n * step + size * 0.25, up + size * 0.25); context.lineTo(left + n * step + size * 0.75, up + size * 0.75); }
          context.stroke();
        }
      }
      if (cell.name === selected || cell.name === hover?.cell.name) { context.strokeStyle = text; context.lineWidth = 2; context.strokeRect(left - 2, up - 2, cell.gpus.length * step + 2, size + 4); }
    }
  };
  useEffect(() => { const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width))); watch.observe(canvas.current.parentElement); return () => watch.disconnect(); }, []);
  useEffect(() => { const frame = requestAnimationFrame(draw); return () => cancelAnimationFrame(frame); });
  const zoom = (factor, px = width / 2, py = height / 2) => { const v = view.current, scale = Math.min(4, Math.max(0.1, v.scale * factor)); view.current = { scale, x: px - ((px - v.x) * scale) / v.scale, y: py - ((py - v.y) * scale) / v.scale }; draw(); };
  const at = event => {
    const box = canvas.current.getBoundingClientRect(), v = view.current, px = (event.clientX - box.left - v.x) / v.scale, py = (event.clientY - box.top - v.y) / v.scale;
    const place = plan.current.places.find(each => px >= each.x - 2 && px <= each.x + each.cell.gpus.length * (CELL + GAP) && py >= each.y - 2 && py <= each.y + CELL + 2);
    return place && { cell: place.cell, slot: Math.min(place.cell.gpus.length - 1, Math.max(0, Math.floor((px - place.x) / (CELL + GAP)))), left: event.clientX - box.left, top: event.clientY - box.top };
  };
  const move = event => {
    if (drag.current) { const v = view.current; view.current = { ...v, x: drag.current.x + event.clientX - drag.current.px, y: drag.current.y + event.clientY - drag.current.py }; drag.current.moved ||= Math.hypot(event.clientX - drag.current.px, event.clientY - drag.current.py) > 4; draw(); return; }
    const found = at(event);
    if (found?.cell !== hover?.cell || found?.slot !== hover?.slot) setHover(found || null);
  };
  const press = event => {
    const list = plan.current.places, here = list.findIndex(each => each.cell.name === selected), steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (steps[event.key]) { event.preventDefault(); const next = list[Math.min(list.length - 1, Math.max(0, here + steps[event.key]))]; if (next) { onSelect(next.cell.name); const v = view.current, y = next.y * v.scale + v.y; if (y < 20 || y > height - 20) { view.current = { ...v, y: v.y - (y - height / 2) }; } } }
    if (event.key === "+" || event.key === "=") zoom(1.3);
    if (event.key === "-") zoom(1 / 1.3);
    if (event.key === "0") { fit(); draw(); }
  };
  void theme.value;
  return html`<div class="map"><canvas ref=${canvas} style=${{ height: `${height}px` }} tabindex="0" role="application" aria-label="Map of ${cells.length} nodes. Arrow keys choose a node, + and - zoom. The list below has the same."
    onPointerDown=${event => { drag.current = { ...view.current, px: event.clientX, py: event.clientY, moved: false }; canvas.current.setPointerCapture(event.pointerId); }} onPointerMove=${move} onPointerUp=${event => { const was = drag.current; drag.current = null; if (was && !was.moved) { const found = at(event); if (found) onSelect(found.cell.name); } }} onPointerLeave=${() => { drag.current = null; setHover(null); }}
    onWheel=${event => { event.preventDefault(); const box = canvas.current.getBoundingClientRect(); zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, event.clientX - box.left, event.clientY - box.top); }} onKeyDown=${press}></canvas>
    <div class="zoom"><button aria-label="Zoom in" onClick=${() => zoom(1.3)}>+</button><button aria-label="Zoom out" onClick=${() => zoom(1 / 1.3)}>−</button><button aria-label="Show all" onClick=${() => { fit(); draw(); }}>⤢</button></div>
    ${hover && html`<div class="tip" style=${{ left: `${Math.min(hover.left + 14, width - 240)}px`, top: `${Math.min(hover.top + 14, height - 110)}px` }}>${tip(hover.cell, hover.slot)}</div>`}</div>`;
}
