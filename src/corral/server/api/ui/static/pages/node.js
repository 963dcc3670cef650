// One node: its GPUs and what is on them, why it is out, its figures, and what happened to it.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part } from "../lib/api.js";
import { jobsOnMap, nodes, seq, useNews } from "../lib/live.js";
import { count, mib, percent, value } from "../lib/format.js";
import { jobLink, link, params, path, setParams } from "../lib/route.js";
import { Empty, Facts, Head, letterWord, Notice, Panel, ProblemNotice, State, Switch } from "../parts/basics.js";
import { Chart, RANGES, useSeries } from "../parts/chart.js";
import { EventList } from "../parts/event-list.js";
import { NodeActions } from "../parts/node-actions.js";

const BACK = 20000;
const COLOURS = ["blue", "teal", "amber", "green", "red", "purple", "grey", "text"];

export default function NodePage() {
  const name = path.value[1], cell = nodes.value.get(name), range = params.value.get("range") || "1h";
  const [node, setNode] = useState(null), [problem, setProblem] = useState(null), [history, setHistory] = useState([]), news = useNews(5000);
  useEffect(() => { let over = false; const read = () => get(`nodes/${part(name)}`).then(found => { if (!over) { setNode(found); setProblem(null); } }).catch(found => !over && setProblem(found)); read(); const timer = setInterval(read, 10000); return () => { over = true; clearInterval(timer); }; }, [name, cell]);
  const [back, setBack] = useState(1), from = Math.max(0, seq.peek() - back * BACK); // records that are looked through
  useEffect(() => {
    let over = false;
    const read = async () => {
      let all = [];
      for (let after = from, n = 0; n < 2 * back; n++) {
        const found = await get("events", { node: name, after, limit: 1000 });
        all = [...all, ...found.events];
        if (found.next >= found.head || found.next <= after) break;
        after = found.next;
      }
      if (!over) setHistory(all.reverse());
    };
    read().catch(() => {});
    return () => { over = true; };
  }, [name, news, back]);
  const lines = (cell ? [...cell.gpus] : []).slice(0, 8).map((_, n) => ({ name: `node/${name}/gpu${n}/utilisation`, label: `GPU ${n}`, colour: COLOURS[n] }));
  const found = useSeries([...lines.map(line => line.name), `node/${name}/cpu`, `node/${name}/memory_mib`], range);
  if (problem && !node) return html`<${Head} title="Node ${name}" /><${ProblemNotice} problem=${problem} />`;
  if (!node) return html`<${Head} title="Node ${name}" /><p class="dim">Loading…</p>`;
  return html`<${Head} title=${name} note=${html`<span class="row">${cell && html`<${State} state=${cell.state} />`}<span>${Object.entries(node.domains).map(([level, where]) => `${level} ${where}`).join(", ")}</span></span>`}>${cell && html`<${NodeActions} node=${cell} />`}<a class="button small" href=${link("jobs", { node: name })}>Jobs here</a></${Head}>
    <div class="stack">${node.why && html`<${Notice} level="warning">${node.why}</${Notice}>`}
    <${Panel} title="GPUs" flush><div class="scrolls" tabindex="0"><table><thead><tr><th class="r">Slot</th><th>State</th><th>Model</th><th class="r">Memory</th><th>Health</th><th>Job</th></tr></thead><tbody>${node.gpus.map(gpu => html`<tr><td class="r">${gpu.slot}</td><td>${cell ? letterWord(cell.gpus[gpu.slot]) : "–"}</td><td>${gpu.model}${gpu.simulated && html` <span class="tag">simulated</span>`}</td><td class="r">${mib(gpu.vram_mib)}</td><td><${State} state=${gpu.health} />${gpu.why && html` <span class="dim">${gpu.why}</span>`}</td><td>${cell?.jobs[gpu.slot] ? html`<a href=${jobLink(cell.jobs[gpu.slot])}>${cell.jobs[gpu.slot]} ${jobsOnMap.value[cell.jobs[gpu.slot]]?.name || ""}</a>` : gpu.busy ? html`<span class="dim">a job that you may not see</span>` : "–"}</td></tr>`)}</tbody></table></div></${Panel}>
    <div class="row"><span class="grow"></span><${Switch} label="Time range" options=${RANGES} value=${range} onChange=${key => setParams({ range: key === "1h" ? "" : key })} /></div>
    <div class="grid"><div class="w6"><${Panel} title="GPU utilisation"><${Chart} found=${found} lines=${lines} format=${percent} max=${100} label="GPU utilisation" /></${Panel}></div><div class="w3"><${Panel} title="CPUs busy"><${Chart} found=${found} lines=${[{ name: `node/${name}/cpu`, label: "CPUs", colour: "teal", fill: true }]} format=${value} label="CPUs busy" /></${Panel}></div><div class="w3"><${Panel} title="Memory"><${Chart} found=${found} lines=${[{ name: `node/${name}/memory_mib`, label: "in use", colour: "green", fill: true }]} format=${mib} label="Memory" /></${Panel}></div></div>
    <${Panel} title="Machine"><${Facts} facts=${[...Object.entries(node.amounts).map(([key, all]) => [key.replace(/_(milli|mib)$/, ""), key.endsWith("_milli") ? `${value((node.free[key] ?? 0) / 1000)} free of ${value(all / 1000)}` : `${mib(node.free[key] ?? 0)} free of ${mib(all)}`]), node.details?.driver && ["Driver", node.details.driver], node.fleet && ["Fleet", node.fleet], ...Object.entries(node.lacks).map(([what, why]) => [`Lacks ${what}`, why]), ...Object.entries(node.separation).map(([what, how]) => [`Isolation: ${what}`, how])]} /></${Panel}>
    <${Panel} title="History of the node and its health" flush foot=${from > 0 ? html`<button class="link" onClick=${() => setBack(2 * back)}>Look further back than record ${count(from)}</button>` : null}>${history.length ? html`<${EventList} events=${history.slice(0, 500)} />` : html`<${Empty} title="Nothing has happened to it">${from > 0 ? `Not since record ${count(from)}.` : "No drains, losses or changes of health are recorded."}</${Empty}>`}</${Panel}></div>`;
}
