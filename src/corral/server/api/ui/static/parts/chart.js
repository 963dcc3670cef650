// A chart of one or more series over time, by uPlot, in the colours of the theme. Data come from /v1/series. The numbers
// are also in a table that only screen readers see.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import uPlot from "../vendor/uplot.js";
import { clock, mib, value as shownValue } from "../lib/format.js";
import { get } from "../lib/api.js";
import { theme } from "./theme.js";
import { Empty } from "./basics.js";

export const RANGES = [["1h", "1 h", 3600e3], ["24h", "24 h", 86400e3], ["7d", "7 d", 7 * 86400e3], ["30d", "30 d", 30 * 86400e3]];
export const rangeMs = key => (RANGES.find(([name]) => name === key) || RANGES[0])[2];

// Read series by name; refreshed as often as a new point can be there.
export function useSeries(names, range, key = "") {
  const [found, setFound] = useState(null);
  const text = names.join(",");
  useEffect(() => {
    if (!text) return undefined;
    let over = false, timer = 0;
    const read = async () => {
      try {
        const answer = await get("series", { names: text, since_ms: Math.round(Date.now() - rangeMs(range)) });
        if (!over) setFound(answer);
      } catch (problem) { if (!over && problem.code === "not_leader") setFound({ series: [], points: 0, step_ms: 10000, from_ms: 0, summary: null }); } // what else fails is shown at the top
      if (!over) timer = setTimeout(read, document.hidden ? 60000 : range === "1h" ? 10000 : 60000);
    };
    read();
    return () => { over = true; clearTimeout(timer); };
  }, [text, range, key]);
  return found;
}

const dayText = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" }), minuteText = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" }), secondText = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const POWERS = Array.from({ length: 40 }, (_, n) => 2 ** n); // so that sizes have round labels
// Counts come for each point; people read them per hour.
const scaled = (values, line, found) => (values && line.perHour ? values.map(each => (each === null ? null : (each * 3600000) / found.step_ms)) : values);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// lines: [{ name, label, colour, fill, dash, show }]
export function Chart({ found, lines, height = 180, format = shownValue, max, least = 0, label }) {
  const place = useRef(null), plot = useRef(null), tip = useRef(null);
  const current = theme.value;
  const byName = new Map((found?.series || []).map(each => [each.name, each.values]));
  const whole = lines.map(line => scaled(byName.get(line.name), line, found));
  const count = found ? found.points : 0, begin = firstShown(whole, count);
  const times = Array.from({ length: count - begin }, (_, n) => (found.from_ms + (begin + n) * found.step_ms) / 1000);
  const data = [times, ...whole.map(values => (values ? values.slice(begin) : times.map(() => null)))];
  const hasData = data.slice(1).some(values => values.some(each => each !== null));
  const data_ = useRef(data);
  data_.current = data;
  useEffect(() => {
    if (!hasData || !place.current) return undefined;
    const grid = { stroke: colour("line"), width: 1 }, ticks = { show: false };
    const axis = { stroke: colour("dim"), grid, ticks, font: "11px system-ui, sans-serif" };
    const made = new uPlot({
      width: place.current.clientWidth, height, padding: [8, 28, 0, 0], cursor: { y: false, points: { size: 6 } }, legend: { show: false },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), max ?? (high > 0 ? Math.max(high * 1.08, least) : 1)] } },
      axes: [{ ...axis, grid: { show: false }, size: 24, space: 90, values: (_, all, __, ___, step) => all.map(each => (step >= 86400 ? dayText : step >= 60 ? minuteText : secondText).format(each * 1000)) }, { ...axis, size: 58, ...(format === mib ? { incrs: POWERS } : {}), values: (_, all) => all.map(each => format(each)) }],
      series: [{}, ...lines.map(line => ({
        label: line.label, stroke: colour(line.colour), width: 1.75, dash: line.dash, spanGaps: false, points: { show: (plot, line) => plot.data[line].reduce((sum, each) => sum + (each !== null), 0) < 12, size: 5, fill: colour(line.colour) },
        fill: line.fill ? `${colour(line.colour)}26` : undefined,
      }))],
      hooks: { setCursor: [shown => showTip(shown, tip.current, lines, format)] },
    }, data_.current, place.current);
    plot.current = made;
    const watch = new ResizeObserver(() => place.current && made.setSize({ width: place.current.clientWidth, height }));
    watch.observe(place.current);
    return () => { watch.disconnect(); made.destroy(); plot.current = null; };
  }, [hasData, current, lines.map(line => line.name).join(), height, max]);
  useEffect(() => { plot.current?.setData(data); }, [found]);
  const last = lines.map(line => [line.label, lastOf(byName.get(line.name))]);
  return html`<div><div class="chart" ref=${place} style=${{ minHeight: `${height}px` }} role="img" aria-label="${label}: ${last.map(([name, x]) => `${name} ${x === null ? "unknown" : format(x)}`).join(", ")}">
    ${!hasData && html`<${Empty} title=${found ? "No figures yet" : "Loading…"}>${found && "They appear here as they are measured."}</${Empty}>`}
    <div class="chart-tip" ref=${tip} hidden></div></div></div>`;
}

// A young cluster has figures only at the end of the range: the chart begins with them, and not with an empty space.
function firstShown(all, count) {
  const first = Math.min(...all.map(values => (values ? values.findIndex(each => each !== null) : -1)).map(at => (at < 0 ? count : at)));
  return first > count / 2 && first < count ? Math.max(0, Math.min(first - 2, count - 30)) : 0;
}

const lastOf = values => { for (let n = (values || []).length - 1; n >= 0; n--) if (values[n] !== null) return values[n]; return null; };

function showTip(plot, tip, lines, format) {
  const at = plot.cursor.idx;
  if (!tip) return;
  if (at === null || at === undefined || plot.cursor.left < 0) { tip.hidden = true; return; }
  tip.replaceChildren(...[clock(plot.data[0][at] * 1000), ...lines.map((line, n) => `${line.label}: ${plot.data[n + 1][at] === null ? "–" : format(plot.data[n + 1][at])}`)].map(text => {
    const row = document.createElement("div");
    row.textContent = text;
    return row;
  }));
  tip.hidden = false;
  const left = plot.cursor.left + 60, width = plot.width;
  tip.style.left = `${left + 150 > width ? left - 170 : left}px`;
  tip.style.top = "8px";
}

export const ChartKey = ({ lines }) => html`<div class="legend">${lines.map(line => html`<span class="key"><i class="swatch" style=${{ background: `var(--${line.colour})` }}></i>${line.label}</span>`)}</div>`;
