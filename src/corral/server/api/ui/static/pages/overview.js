// The overview: how full the cluster is, how long people wait, what is wrong now, and what happened last.
import { html, useState } from "../lib/ui.js";
import { events, overview } from "../lib/live.js";
import { count, gpus, percent, plural, span } from "../lib/format.js";
import { jobLink, link, nodeLink, params, setParams } from "../lib/route.js";
import { Empty, GpuMeter, Head, Panel, Switch, Time } from "../parts/basics.js";
import { Chart, ChartKey, RANGES, useSeries } from "../parts/chart.js";
import { EventList } from "../parts/event-list.js";
import { Icon } from "../parts/icons.js";

const inUse = [{ name: "cluster/gpus", label: "all", colour: "grey", dash: [4, 4] }, { name: "cluster/gpus_used", label: "in use", colour: "blue", fill: true }];
const waiting = [{ name: "cluster/gpus_waiting", label: "GPUs waited for", colour: "amber", fill: true }];
const busy = [{ name: "cluster/utilisation", label: "utilisation of GPUs in use", colour: "teal", fill: true }];
const ends = [{ name: "cluster/succeeded", label: "succeeded", colour: "green", perHour: true }, { name: "cluster/failed", label: "failed", colour: "red", dash: [5, 3], perHour: true }];
const NAMES = [...inUse, ...waiting, ...busy, ...ends].map(line => line.name);

const Stat = ({ label, value, unit, note }) => html`<div class="stat"><div class="label">${label}</div><div class="value">${value}${unit && html` <small>${unit}</small>`}</div>${note && html`<div class="note">${note}</div>`}</div>`;

const Alarm = ({ alarm }) => {
  const href = alarm.node ? nodeLink(alarm.node) : alarm.job ? jobLink(alarm.job) : alarm.fleet ? link("fleets") : null;
  return html`<li><span class="c-${alarm.level === "error" ? "red" : "amber"}" title=${alarm.level}><${Icon} name=${alarm.level} /><span class="hidden-text">${alarm.level}</span></span><div class="grow">${href ? html`<a href=${href}>${alarm.text}</a>` : alarm.text}${alarm.hint && html`<div class="dim">${alarm.hint}</div>`}</div></li>`;
};

function Waits({ summary }) {
  if (!summary) return html`<${Stat} label="Typical wait, 24 h" value="–" note="no jobs have started yet" />`;
  const { day, week } = summary;
  const change = day.mean_ms !== null && week.mean_ms ? Math.round((100 * (day.mean_ms - week.mean_ms)) / week.mean_ms) : null;
  const note = change === null ? "no earlier week yet" : Math.abs(change) < 5 ? "as in the week before" : `${Math.abs(change)} % ${change > 0 ? "longer" : "shorter"} than the week before`;
  return html`<${Stat} label="Mean wait, 24 h" value=${day.mean_ms === null ? "–" : span(day.mean_ms)} note=${day.mean_ms === null ? "nothing has started" : note} />`;
}

export default function Overview() {
  const range = params.value.get("range") || "1h";
  const found = useSeries(NAMES, range), now = overview.value;
  const [all, setAll] = useState(false);
  const summary = found?.summary;
  const used = now.gpus.running + now.gpus.held;
  const alarms = all ? now.alarms : now.alarms.slice(0, 6);
  if (!now.nodes) return html`<${Head} title="Overview" /><${Panel}><${Empty} title="No nodes yet">
    <p>Add a machine: create a join token with <code>corral node token</code>, and use it there: <code>corral node join</code>. Or try it without GPUs: <code>corral up --fake-gpus 8xH100</code>.</p></${Empty}></${Panel}>`;
  return html`<${Head} title="Overview"><${Switch} label="Time range" options=${RANGES} value=${range} onChange=${key => setParams({ range: key === "1h" ? "" : key })} /></${Head}>
  <div class="stack">
    <section class="panel" aria-label="Now"><div class="body stack s"><div class="row"><div class="grow"><span class="num" style=${{ fontSize: "26px", fontWeight: 650, letterSpacing: "-.02em" }}>${count(used)}</span> <span class="dim">of ${plural(now.gpus.total, "GPU")} in use, on ${plural(now.nodes, "node")}</span></div>
      ${now.gpus_simulated > 0 && html`<span class="tag">${now.gpus_simulated === now.gpus_measured ? "simulated GPUs" : `${now.gpus_simulated} simulated`}</span>`}<a class="button small" href=${link("map")}>Open the map</a></div>
      <${GpuMeter} gpus=${now.gpus} big legend /></div>
      <div class="stats" style=${{ borderTop: "1px solid var(--line)" }}>
        <${Stat} label="Running" value=${count(now.gangs_running)} unit=${now.gangs_running === 1 ? "gang" : "gangs"} note=${now.utilisation_percent === null ? "utilisation not measured" : `${percent(now.utilisation_percent)} mean GPU utilisation`} />
        <${Stat} label="Waiting" value=${count(now.gangs_waiting)} unit=${now.gangs_waiting === 1 ? "gang" : "gangs"} note=${now.gangs_waiting ? html`for ${gpus(now.gpu_milli_waiting)} GPUs · <a href=${link("queues", { view: "line" })}>the line</a>` : "nothing waits"} />
        <${Waits} summary=${summary} />
        <${Stat} label="Ended, 24 h" value=${summary ? count(summary.day.succeeded + summary.day.failed) : "–"} unit="jobs" note=${summary ? `${count(summary.day.failed)} failed` : ""} />
        <${Stat} label="Lost work, 24 h" value=${summary ? gpus(summary.day.lost_gpu_ms / 3600) : "–"} unit="GPU-hours" note="by preemption and failures" />
      </div></section>
    <div class="grid">
      <div class="w6"><${Panel} title="GPUs in use" actions=${html`<${ChartKey} lines=${inUse} />`}><${Chart} found=${found} lines=${inUse} label="GPUs in use" /></${Panel}></div>
      <div class="w6"><${Panel} title="Queue depth" actions=${html`<${ChartKey} lines=${waiting} />`}><${Chart} found=${found} lines=${waiting} label="Queue depth" /></${Panel}></div>
      <div class="w6"><${Panel} title="GPU utilisation" actions=${html`<${ChartKey} lines=${busy} />`}><${Chart} found=${found} lines=${busy} format=${percent} max=${100} label="Utilisation" /></${Panel}></div>
      <div class="w6"><${Panel} title="Jobs that ended, per hour" actions=${html`<${ChartKey} lines=${ends} />`}><${Chart} found=${found} lines=${ends} label="Jobs that ended" /></${Panel}></div>
      <div class="w6"><${Panel} title="Needs attention" flush actions=${html`<span class="dim">${now.alarms_total || ""}</span>`} foot=${now.alarms_total > alarms.length && html`<button class="link" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${Math.min(now.alarms_total, now.alarms.length) - alarms.length} more`}</button>`}>
        ${alarms.length ? html`<ul class="list">${alarms.map(alarm => html`<${Alarm} alarm=${alarm} />`)}</ul>` : html`<${Empty} title="Nothing is wrong">Every node answers, and every GPU passes its checks.</${Empty}>`}</${Panel}></div>
      <div class="w6"><${Panel} title="Latest events" flush actions=${html`<a href=${link("events")}>All events</a>`}><${EventList} events=${events.value.slice(0, 8)} /></${Panel}></div>
      ${now.models.length > 0 && html`<div><${Panel} title="GPUs by model" flush><div class="scrolls" tabindex="0"><table><thead><tr><th>Model</th><th class="r">All</th><th class="r">In use</th><th class="r">Free</th><th style=${{ width: "45%" }}>State</th></tr></thead><tbody>${now.models.map(line => html`<tr><td><a href=${link("jobs", { gpu_model: line.model })}>${line.model || "unknown"}</a></td><td class="r">${count(line.gpus.total)}</td><td class="r">${count(line.gpus.running + line.gpus.held)}</td><td class="r">${count(line.gpus.free)}</td><td><${GpuMeter} gpus=${line.gpus} /></td></tr>`)}</tbody></table></div></${Panel}></div>`}
    </div></div>`;
}
