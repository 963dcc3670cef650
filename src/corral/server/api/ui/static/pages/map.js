// The map of the cluster: where everything runs, coloured by what the viewer wants to see, and a list with the same.
import { html, useEffect, useState } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { jobsOnMap, nodes } from "../lib/live.js";
import { count, now, percent, plural, span } from "../lib/format.js";
import { jobLink, nodeLink, params, setParams } from "../lib/route.js";
import { Empty, GpuRow, gpuWords, Head, letterWord, Panel, State } from "../parts/basics.js";
import { MapCanvas } from "../parts/map-canvas.js";
import { NodeActions } from "../parts/node-actions.js";

const BY = [["state", "State"], ["queue", "Queue"], ["user", "User"], ["job", "Job"], ["health", "Health"], ["utilisation", "Utilisation"], ["temperature", "Temperature"], ["checkpoint", "Age of the checkpoint"]];
const WORDS = { r: "--gpu-running", h: "--gpu-held", f: "--gpu-free", c: "--gpu-closed", s: "--gpu-sick", l: "--gpu-lost" };
// Eight colours that stay apart for most kinds of colour blindness, in both themes.
const MANY = ["#3672dd", "#d48a1a", "#1f9e89", "#b5495b", "#8367c7", "#7a8b2f", "#3aa6d0", "#c765a5"];
const NONE = "--gpu-free";
const ramp = (part, from = 210, to = 15) => `hsl(${from + (to - from) * Math.min(1, Math.max(0, part))} 62% ${62 - 14 * Math.min(1, Math.max(0, part))}%)`;

function hash(text) { let found = 7; for (let n = 0; n < text.length; n++) found = (found * 31 + text.charCodeAt(n)) >>> 0; return found; }
function palette(names) { const sorted = [...names].sort(); return name => (sorted.length <= MANY.length ? MANY[sorted.indexOf(name)] : MANY[hash(name) % MANY.length]); }

function painter(by, figures, names) {
  const pick = palette(names);
  const of = (cell, slot) => jobsOnMap.value[cell.jobs[slot]];
  return {
    state: (cell, slot) => WORDS[cell.gpus[slot]],
    queue: (cell, slot) => { const job = of(cell, slot); return job ? pick(job.queue) : cell.gpus[slot] === "f" ? NONE : "--gpu-closed"; },
    user: (cell, slot) => { const job = of(cell, slot); return job ? pick(job.user) : cell.gpus[slot] === "f" ? NONE : "--gpu-closed"; },
    job: (cell, slot) => (cell.jobs[slot] ? MANY[hash(cell.jobs[slot]) % MANY.length] : cell.gpus[slot] === "f" ? NONE : "--gpu-closed"),
    health: (cell, slot) => (cell.gpus[slot] === "l" || cell.state === "lost" ? "--gpu-lost" : cell.gpus[slot] === "s" || cell.state === "sick" ? "--gpu-sick" : "--green"),
    utilisation: (cell, slot) => { const found = figures.get(cell.name)?.utilisation_percent[slot]; return found === null || found === undefined ? NONE : ramp(found / 100, 215, 120); },
    temperature: (cell, slot) => { const found = figures.get(cell.name)?.temperature_c[slot]; return found === null || found === undefined ? NONE : ramp((found - 30) / 60); },
    checkpoint: (cell, slot) => { const job = of(cell, slot); return !job ? NONE : job.saved_ms === null ? "--gpu-lost" : ramp((now.value - job.saved_ms) / 7200000); },
  }[by];
}

function useFigures(active) {
  const [found, setFound] = useState(new Map());
  useEffect(() => {
    if (!active) return undefined;
    let over = false;
    const read = () => get("topology").then(answer => { if (!over) setFound(new Map(answer.nodes.map(cell => [cell.name, cell]))); }).catch(() => {});
    read();
    const timer = setInterval(read, 10000);
    return () => { over = true; clearInterval(timer); };
  }, [active]);
  return found;
}

const Key = ({ by, names }) => {
  if (by === "state") return html`<div class="legend">${gpuWords.map(([word]) => html`<span class="key"><i class="swatch g-${word}"></i>${word}</span>`)}</div>`;
  if (by === "health") return html`<div class="legend"><span class="key"><i class="swatch" style=${{ background: "var(--green)" }}></i>healthy</span><span class="key"><i class="swatch g-sick"></i>sick ×</span><span class="key"><i class="swatch g-lost"></i>lost ×</span></div>`;
  const scale = { utilisation: ["0 %", "50 %", "100 %", 215, 120], temperature: ["30 °C", "60 °C", "90 °C", 210, 15], checkpoint: ["saved now", "1 h ago", "2 h ago or more; red: never", 210, 15] }[by];
  if (scale) return html`<div class="legend">${[0, 0.5, 1].map((part, n) => html`<span class="key"><i class="swatch" style=${{ background: ramp(part, scale[3], scale[4]) }}></i>${scale[n]}</span>`)}<span class="key"><i class="swatch g-free"></i>unknown or free</span></div>`;
  const pick = palette(names), sorted = [...names].sort();
  return html`<div class="legend">${sorted.slice(0, 8).map(name => html`<span class="key"><i class="swatch" style=${{ background: pick(name) }}></i>${name}</span>`)}${sorted.length > 8 && html`<span>and ${sorted.length - 8} more, colours repeat</span>`}<span class="key"><i class="swatch g-free"></i>free</span></div>`;
};

export default function ClusterMap() {
  const by = params.value.get("by") || "state", filter = (params.value.get("node") || "").toLowerCase();
  const figures = useFigures(["utilisation", "temperature"].includes(by)), [selected, setSelected] = useState(null), [shown, setShown] = useState(50);
  const cells = [...nodes.value.values()].filter(cell => !filter || cell.name.toLowerCase().includes(filter));
  const names = new Set(Object.values(jobsOnMap.value).map(job => (by === "user" ? job.user : job.queue)));
  if (!nodes.value.size) return html`<${Head} title="Map" /><${Panel}><${Empty} title="No nodes yet"><p>Add a machine: <code>corral node token</code> here, <code>corral node join</code> there.</p></${Empty}></${Panel}>`;
  const tip = (cell, slot) => { const job = jobsOnMap.value[cell.jobs[slot]], used = figures.get(cell.name)?.utilisation_percent[slot]; return html`<b>${cell.name}</b> GPU ${slot} <span class="dim">${cell.model}</span><div>${letterWord(cell.gpus[slot])}${job ? html`: job ${cell.jobs[slot]} ${job.name}` : cell.gpus[slot] === "r" ? ": a job that you may not see" : ""}</div>${job && html`<div class="dim">${job.user} in ${job.queue}${job.started_ms ? `, for ${span(now.value - job.started_ms)}` : ""}</div>`}${used !== null && used !== undefined && html`<div class="dim">${percent(used)} busy</div>`}${cell.why && html`<div>${cell.why}</div>`}`; };
  const node = nodes.value.get(selected), gpus = cells.reduce((sum, cell) => sum + cell.gpus.length, 0);
  return html`<${Head} title="Map" note=${`${plural(cells.length, "node")}, ${plural(gpus, "GPU")}`}><input type="search" aria-label="Filter nodes" placeholder="Filter nodes" value=${params.value.get("node") || ""} onInput=${event => setParams({ node: event.target.value })} style=${{ width: "150px" }} />
    <label class="row tight"><span class="dim">Colour by</span><select value=${by} onChange=${event => setParams({ by: event.target.value === "state" ? "" : event.target.value })}>${BY.map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select></label></${Head}>
    <div class="stack"><${Key} by=${by} names=${names} />
    <${MapCanvas} cells=${cells} colour=${painter(by, figures, names)} selected=${selected} onSelect=${setSelected} tip=${tip} height=${Math.min(680, Math.max(240, innerHeight - 360))} />
    ${node && html`<${Panel} title=${node.name} actions=${html`<${State} state=${node.state} /><${NodeActions} node=${node} /><a class="button small" href=${nodeLink(node.name)}>Open</a>`}><div class="row"><${GpuRow} gpus=${node.gpus} /><span class="dim">${node.path.join(" / ")} ${node.model}</span>${node.why && html`<span>${node.why}</span>`}</div>${[...new Set(node.jobs.filter(Boolean))].map(id => html`<div><a href=${jobLink(id)}>job ${id} ${jobsOnMap.value[id]?.name}</a> <span class="dim">${jobsOnMap.value[id]?.user} in ${jobsOnMap.value[id]?.queue}</span></div>`)}</${Panel}>`}
    <${Panel} title="Nodes" flush foot=${cells.length > shown && html`<button class="link" onClick=${() => setShown(shown + 500)}>Show more (${count(cells.length - shown)} left)</button>`}><div class="scrolls" tabindex="0"><table><thead><tr><th>Node</th><th>State</th><th>Place</th><th>Model</th><th>GPUs</th><th class="r">Free</th><th class="wide-only">Note</th></tr></thead><tbody>${cells.slice(0, shown).map(cell => html`<tr key=${cell.name}><td><a href=${nodeLink(cell.name)}>${cell.name}</a></td><td><${State} state=${cell.state} /></td><td class="dim">${cell.path.join(" / ") || "–"}</td><td>${cell.model || "–"}</td><td><${GpuRow} gpus=${cell.gpus} /></td><td class="r">${[...cell.gpus].filter(letter => letter === "f").length}</td><td class="wide-only dim">${cell.why}</td></tr>`)}</tbody></table></div></${Panel}></div>`;
}
