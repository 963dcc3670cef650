// What was used and lost: by queue, user or day, as a table, a chart and a file for a spreadsheet.
import { html, useEffect, useMemo, useState } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { count, hours, percent } from "../lib/format.js";
import { params, setParams } from "../lib/route.js";
import { Empty, Head, Panel, ProblemNotice, Switch } from "../parts/basics.js";

const day = ms => new Date(ms).toISOString().slice(0, 10);
const BY = [["queue", "Queue"], ["user", "User"], ["model", "Model"], ["day", "Day"]];
const CAUSES = { reclaim: "preempted for a guarantee", priority: "preempted by priority", time_share: "yielded after its turn", shrink: "gave up a part of its seats", grow: "grew", move: "moved to other nodes", drain: "its node was drained", time_limit: "ran into its time limit", user_error: "the program failed", node_lost: "its node was lost", gpu_fault: "a GPU failed", killed: "killed from outside", stalled: "made no step", network: "the network failed" };

// A cell that a spreadsheet would take for a formula is made a text.
const cell = value => { const text = String(value); const safe = /^[=+\-@\t\r]/.test(text) && typeof value === "string" ? `'${text}` : text; return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe; };

function save(lines) {
  const rows = [["day", "queue", "user", "gpu_hours", "lost_gpu_hours", "jobs"], ...lines.map(line => [line.day, line.queue, line.user, (line.gpu_ms / 3600000).toFixed(4), (line.lost_gpu_ms / 3600000).toFixed(4), line.jobs])];
  const url = URL.createObjectURL(new Blob([rows.map(row => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "corral-usage.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export default function Usage() {
  const by = params.value.get("by") || "queue", since = params.value.get("since") || day(Date.now() - 30 * 86400000), until = params.value.get("until") || day(Date.now()), queue = params.value.get("queue") || "", user = params.value.get("user") || "", price = Number(params.value.get("price") || 0);
  const [found, setFound] = useState(null), [parts, setParts] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => { let over = false; get("usage/parts", { since, until, queue, user }).then(answer => !over && setParts(answer)).catch(() => {}); return () => { over = true; }; }, [since, until, queue, user]);
  useEffect(() => { let over = false; get("usage", { since, until, queue, user }).then(answer => { if (!over) { setFound(answer); setProblem(null); } }).catch(each => !over && setProblem(each)); return () => { over = true; }; }, [since, until, queue, user]);
  const groups = useMemo(() => {
    const sums = new Map();
    const lines = by === "model" ? (parts?.parts || []).map(part => ({ ...part, model: part.model || "unknown", lost_gpu_ms: 0, jobs: 0 })) : found?.lines || [];
    for (const line of lines) { const sum = sums.get(line[by]) || { key: line[by], gpu_ms: 0, lost_gpu_ms: 0, jobs: 0 }; sum.gpu_ms += line.gpu_ms; sum.lost_gpu_ms += line.lost_gpu_ms; sum.jobs += line.jobs; sums.set(line[by], sum); }
    return [...sums.values()].sort((a, b) => (by === "day" ? b.key.localeCompare(a.key) : b.gpu_ms - a.gpu_ms));
  }, [found, parts, by]);
  const priced = !price && parts?.cost_milli > 0 && by !== "day", costs = new Map();
  if (priced) for (const part of parts.parts) { const key = by === "model" ? part.model || "unknown" : part[by]; costs.set(key, (costs.get(key) || 0) + part.cost_milli); }
  const money = milli => `${(milli / 1000).toFixed(2)}${parts?.currency ? ` ${parts.currency}` : ""}`;
  const most = Math.max(1, ...groups.map(each => each.gpu_ms)), cost = each => (price ? ((each.gpu_ms / 3600000) * price).toFixed(2) : priced ? money(costs.get(each.key) || 0) : null);
  const Field = ({ name, label, value, type = "text", width = "140px" }) => html`<label class="row tight"><span class="dim">${label}</span><input type=${type} value=${value} style=${{ width }} onChange=${event => setParams({ [name]: event.target.value.trim() })} /></label>`;
  return html`<${Head} title="Usage" note="GPU time by day in UTC, with what runs now"><${Switch} label="Group by" options=${BY} value=${by} onChange=${key => setParams({ by: key === "queue" ? "" : key })} /><button onClick=${() => save(found?.lines || [])} disabled=${!found?.lines.length}>Download CSV</button></${Head}>
    <div class="filters"><${Field} name="since" label="From" value=${since} type="date" /><${Field} name="until" label="to" value=${until} type="date" /><${Field} name="queue" label="Queue" value=${queue} width="120px" /><${Field} name="user" label="User" value=${user} width="110px" /><${Field} name="price" label="Price of a GPU-hour" value=${price || ""} type="number" width="90px" /></div><${ProblemNotice} problem=${problem} />
    ${found && !groups.length ? html`<${Panel}><${Empty} title="Nothing was used in this time">Choose another time.</${Empty}></${Panel}>` : html`<${Panel} title=${`By ${by}`} flush actions=${found && html`<div class="legend"><span class="key"><i class="swatch g-running"></i>used</span><span class="key"><i class="swatch" style=${{ background: "var(--purple)" }}></i>lost</span></div><span class="dim">${hours(found.gpu_ms)} GPU-hours, ${hours(found.lost_gpu_ms)} of them lost${price ? `, cost ${((found.gpu_ms / 3600000) * price).toFixed(2)}` : parts?.cost_milli ? `, cost ${money(parts.cost_milli)}` : ""}</span>`}><div class="scrolls" tabindex="0"><table><thead><tr><th>${BY.find(([key]) => key === by)[1]}</th><th style=${{ width: "38%" }}>Share</th><th class="r">GPU-hours</th>${by === "model" ? null : html`<th class="r">Lost</th><th class="r">Lost part</th>`}${price || priced ? html`<th class="r">Cost</th>` : null}${by === "model" ? null : html`<th class="r">Jobs</th>`}</tr></thead><tbody>${groups.slice(0, 500).map(each => html`<tr key=${each.key}><td>${each.key}</td><td><div class="share" role="img" aria-label="${hours(each.gpu_ms)} GPU-hours"><i style=${{ width: `${(100 * (each.gpu_ms - each.lost_gpu_ms)) / most}%` }}></i><i class="borrowed" style=${{ left: `${(100 * (each.gpu_ms - each.lost_gpu_ms)) / most}%`, width: `${(100 * each.lost_gpu_ms) / most}%` }}></i></div></td><td class="r">${hours(each.gpu_ms)}</td>${by === "model" ? null : html`<td class="r">${hours(each.lost_gpu_ms)}</td><td class="r">${percent(each.gpu_ms ? (100 * each.lost_gpu_ms) / each.gpu_ms : 0)}</td>`}${price || priced ? html`<td class="r">${cost(each)}</td>` : null}${by === "model" ? null : html`<td class="r">${count(each.jobs)}</td>`}</tr>`)}</tbody></table></div></${Panel}>`}
    <div class="gap"></div>${parts && html`<${Losses} parts=${parts} />`}`;
}

function Losses({ parts }) {
  const all = parts.losses.reduce((sum, each) => sum + each.lost_gpu_ms, 0);
  return html`<${Panel} title="Lost work by cause" flush foot=${parts.is_complete ? null : "Only the newest attempts of this time were counted."}>${parts.losses.length ? html`<div class="scrolls" tabindex="0"><table><thead><tr><th>Cause</th><th style=${{ width: "38%" }}>Share</th><th class="r">GPU-hours</th><th class="r">Attempts</th></tr></thead><tbody>${parts.losses.map(each => html`<tr><td>${CAUSES[each.cause] || each.cause.replaceAll("_", " ")}</td><td><div class="share" role="img" aria-label="${percent((100 * each.lost_gpu_ms) / all)} of lost work"><i class="borrowed" style=${{ left: 0, width: `${(100 * each.lost_gpu_ms) / all}%` }}></i></div></td><td class="r">${hours(each.lost_gpu_ms)}</td><td class="r">${count(each.attempts)}</td></tr>`)}</tbody></table></div>` : html`<${Empty} title="Nothing was lost">No attempt that ended in this time lost work.</${Empty}>`}</${Panel}>`;
}
