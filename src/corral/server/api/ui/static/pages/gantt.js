// What ran where, and what is reserved: one row for each node or queue, over time. Drawn on a canvas.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { onJobs } from "../lib/live.js";
import { clock, now, plural, span } from "../lib/format.js";
import { go, params, setParams } from "../lib/route.js";
import { Empty, Head, Panel, ProblemNotice, Switch } from "../parts/basics.js";
import { theme } from "../parts/theme.js";

const SPANS = [["1", "1 h"], ["6", "6 h"], ["24", "24 h"], ["168", "7 d"]];
const MANY = ["#3672dd", "#1f9e89", "#8367c7", "#3aa6d0", "#7a8b2f", "#c765a5"];
const NICE = [5, 10, 15, 30, 60, 120, 180, 360, 720, 1440].map(minutes => minutes * 60000);
const hourText = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" }), dayText = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const tickText = (at, step) => (step >= 43200000 ? dayText : hourText).format(at);
const ROW = 24, LEFT = 130, TOP = 26;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Rows of bars: overlapping bars of one row lie below each other.
function rowsOf(found, by, until) {
  const rows = new Map();
  const add = (key, bar) => { if (!rows.has(key)) rows.set(key, []); rows.get(key).push(bar); };
  for (const each of found.attempts) {
    const bar = { start: each.placed_ms, begun: each.started_ms, end: each.ended_ms ?? found.at_ms, label: each.name || `job ${each.job}`, job: each.job, queue: each.queue, user: each.user, failed: each.failure && each.failure !== "preempted", open: each.ended_ms === null };
    if (by === "queue") add(each.queue, bar); else for (const node of new Set(each.seats.map(seat => seat.node))) add(node, bar);
  }
  for (const each of found.reserved) {
    const bar = { start: each.starts_ms, begun: each.starts_ms, end: Math.min(each.ends_ms, until), label: each.name || `job ${each.job}`, job: each.job, queue: each.queue, user: each.user, reserved: true };
    if (by === "queue") add(each.queue, bar); else for (const node of new Set(each.seats.map(seat => seat.node))) add(node, bar);
  }
  return [...rows].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })).map(([key, bars]) => {
    const ends = [];
    for (const bar of bars.sort((a, b) => a.start - b.start)) { let lane = ends.findIndex(end => end <= bar.start); if (lane < 0) lane = Math.min(ends.length, 7); ends[lane] = bar.end; bar.lane = lane; }
    return { key, bars, lanes: Math.max(1, ends.length) };
  });
}

// How far ahead the chart goes: a third of the time shown, and as far as starts are reserved, up to twice the time shown.
function ahead(found, back) {
  const last = Math.max(0, ...(found?.reserved || []).map(each => each.starts_ms - now.value));
  return Math.min(2 * back, Math.max(back / 3, last * 1.15));
}

export default function Gantt() {
  const by = params.value.get("by") || "node", hours = Number(params.value.get("hours") || 1);
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), [hover, setHover] = useState(null), [width, setWidth] = useState(900), canvas = useRef(null), box = useRef(null);
  useEffect(() => {
    let over = false, timer = 0;
    const read = () => { timer = 0; const until = Date.now(); get("attempts", { since_ms: Math.round(until - hours * 3600000), until_ms: until + 60000, limit: 3000 }).then(answer => { if (!over) { setFound(answer); setProblem(null); } }).catch(each => !over && setProblem(each)); };
    read();
    const undo = onJobs(() => { if (!timer) timer = setTimeout(read, 3000); });
    return () => { over = true; undo(); clearTimeout(timer); };
  }, [hours]);
  useEffect(() => { const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width))); if (box.current) watch.observe(box.current); return () => watch.disconnect(); }, [Boolean(found)]);
  const from = now.value - hours * 3600000, until = now.value + ahead(found, hours * 3600000), rows = found ? rowsOf(found, by, until) : [];
  const height = TOP + rows.reduce((sum, row) => sum + row.lanes * ROW + 4, 0) + 8, x = ms => LEFT + ((ms - from) / (until - from)) * (width - LEFT);
  const bars = [];
  let y = TOP;
  for (const row of rows) { row.y = y; for (const bar of row.bars) bars.push({ bar, left: Math.max(LEFT, x(bar.start)), right: Math.min(width, x(bar.end)), top: y + bar.lane * ROW + 2 }); y += row.lanes * ROW + 4; }
  const queues = [...new Set(rows.flatMap(row => row.bars.map(bar => bar.queue)))].sort(), colour = queue => MANY[queues.indexOf(queue) % MANY.length];
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const ratio = devicePixelRatio || 1, context = element.getContext("2d");
    element.width = width * ratio; element.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
    const text = css("--text"), dim = css("--dim"), line = css("--line");
    const least = (until - from) / Math.max(2, Math.floor((width - LEFT) / 110)), step = NICE.find(each => each >= least) || 86400000;
    for (let at = Math.ceil(from / step) * step; at < until; at += step) { context.strokeStyle = line; context.beginPath(); context.moveTo(x(at), TOP - 6); context.lineTo(x(at), height); context.stroke(); context.fillStyle = dim; context.fillText(tickText(at, step), x(at) + 4, 10); }
    for (const row of rows) { context.fillStyle = text; context.fillText(row.key, 4, row.y + ROW / 2, LEFT - 10); context.strokeStyle = line; context.beginPath(); context.moveTo(0, row.y - 2); context.lineTo(width, row.y - 2); context.stroke(); }
    for (const { bar, left, right, top } of bars) {
      if (right <= LEFT || left >= width) continue;
      const w = Math.max(2, right - left), fill = colour(bar.queue);
      if (bar.reserved) { context.setLineDash([4, 3]); context.strokeStyle = fill; context.strokeRect(left + 0.5, top + 0.5, w - 1, ROW - 5); context.setLineDash([]); } else { context.fillStyle = fill; context.fillRect(left, top, w, ROW - 4); if (bar.failed) { context.fillStyle = css("--red"); context.fillRect(left + w - 5, top, 5, ROW - 4); } }
      if (w > 36) { context.save(); context.beginPath(); context.rect(left, top, w - 4, ROW); context.clip(); context.fillStyle = bar.reserved ? text : "#fff"; context.fillText(bar.label, left + 5, top + (ROW - 4) / 2); context.restore(); }
    }
    context.strokeStyle = css("--red"); context.beginPath(); context.moveTo(x(now.value), TOP - 8); context.lineTo(x(now.value), height); context.stroke();
  });
  void theme.value;
  const at = event => { const place = canvas.current.getBoundingClientRect(), px = event.clientX - place.left, py = event.clientY - place.top; const hit = bars.find(each => px >= each.left && px <= Math.max(each.right, each.left + 3) && py >= each.top && py <= each.top + ROW); return hit && { ...hit, px, py }; };
  return html`<${Head} title="Gantt" note=${found ? `${plural(found.attempts.length, "attempt")}, ${plural(found.reserved.length, "reserved start")}` : "…"}><${Switch} label="Rows" options=${[["node", "By node"], ["queue", "By queue"]]} value=${by} onChange=${key => setParams({ by: key === "node" ? "" : key })} /><${Switch} label="Time" options=${SPANS} value=${String(hours)} onChange=${key => setParams({ hours: key === "1" ? "" : key })} /></${Head}>
    <${ProblemNotice} problem=${problem} />${found && !rows.length ? html`<${Panel}><${Empty} title="Nothing ran in this time">Choose a longer time, or submit a job.</${Empty}></${Panel}>` : html`<div class="stack"><div class="legend">${queues.slice(0, 6).map(queue => html`<span class="key"><i class="swatch" style=${{ background: colour(queue) }}></i>${queue}</span>`)}<span class="key"><i class="swatch" style=${{ border: "1px dashed var(--dim)" }}></i>reserved</span><span class="key"><i class="swatch" style=${{ background: "var(--red)" }}></i>failed at the end</span></div>
    <div class="map" ref=${box}><canvas ref=${canvas} style=${{ height: `${height}px`, cursor: hover ? "pointer" : "default" }} role="img" aria-label="What ran on ${rows.length} ${by}s; the list below has the same" onPointerMove=${event => setHover(at(event) || null)} onPointerLeave=${() => setHover(null)} onClick=${event => { const hit = at(event); if (hit) go(`jobs/${hit.bar.job}`); }}></canvas>
    ${hover && html`<div class="tip" style=${{ left: `${Math.min(hover.px + 12, width - 250)}px`, top: `${hover.py + 14}px` }}><b>${hover.bar.label}</b> <span class="dim">job ${hover.bar.job}</span><div>${hover.bar.user} in ${hover.bar.queue}</div><div class="dim">${hover.bar.reserved ? "reserved " : ""}${clock(hover.bar.start)} – ${hover.bar.open ? "now" : clock(hover.bar.end)} (${span(hover.bar.end - hover.bar.start)})</div></div>`}</div>
    <${Panel} title="Reserved starts" flush><div class="scrolls" tabindex="0"><table><thead><tr><th>Job</th><th>Queue</th><th>User</th><th>Starts</th><th>Ends</th><th>Nodes</th></tr></thead><tbody>${(found?.reserved || []).map(each => html`<tr><td><a href="#/jobs/${each.job}">${each.name || each.gang}</a></td><td>${each.queue}</td><td>${each.user}</td><td>${clock(each.starts_ms)}</td><td>${clock(each.ends_ms)}</td><td class="dim">${[...new Set(each.seats.map(seat => seat.node))].slice(0, 6).join(", ")}</td></tr>`)}${found && !found.reserved.length && html`<tr><td colspan="6" class="dim">No start is reserved.</td></tr>`}</tbody></table></div></${Panel}></div>`}`;
}
