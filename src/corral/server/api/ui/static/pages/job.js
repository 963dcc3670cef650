// One job: what it does or why it waits, all its attempts, its output, figures, events and document.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part } from "../lib/api.js";
import { may, nodes, onJobs, prices } from "../lib/live.js";
import { count, hours, mib, money, now, percent, plural, serverNow, span, value } from "../lib/format.js";
import { go, jobLink, link, nodeLink, params, path, queueLink, setParams } from "../lib/route.js";
import { Empty, Facts, GpuRow, Head, Notice, Panel, ProblemNotice, State, Switch, Tabs, Time } from "../parts/basics.js";
import { Chart, ChartKey, RANGES, useSeries } from "../parts/chart.js";
import { toast } from "../parts/dialog.js";
import { EventList } from "../parts/event-list.js";
import { ask, offered, titleOf } from "../parts/job-actions.js";
import { LogViewer } from "../parts/log-viewer.js";
import { Why } from "../parts/why.js";
import { toYaml } from "../parts/yaml.js";

const ENDED = ["succeeded", "failed", "cancelled"];

function useJob(id) {
  const [job, setJob] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => {
    let over = false, timer = 0;
    const read = () => get(`jobs/${part(id)}`).then(found => { if (!over) { setJob({ ...found, read_ms: serverNow() }); setProblem(null); } }).catch(found => { if (!over) setProblem(found); });
    read();
    const undo = onJobs((jobs, more) => { if (more || jobs.some(each => each.id === id)) { clearTimeout(timer); timer = setTimeout(read, 200); } });
    return () => { over = true; clearTimeout(timer); undo(); };
  }, [id]);
  return [job, problem];
}

export default function JobPage() {
  const [, id, tab = "overview"] = path.value;
  const [job, problem] = useJob(id);
  useEffect(() => { if (job) document.title = `${job.name || `Job ${id}`} · Corral`; }, [job?.name]);
  if (problem && !job) return html`<${Head} title="Job ${id}" /><${ProblemNotice} problem=${problem} />`;
  if (!job) return html`<${Head} title="Job ${id}" /><p class="dim">Loading…</p>`;
  const mayChange = may("jobs.change") && job.env !== null, tabs = [["overview", "Overview"], ["logs", "Logs"], ["metrics", "Metrics"], ["events", "Events"], ["specification", "Specification"]];
  return html`<${Head} title=${job.name || `Job ${id}`} note=${html`<span class="row"><span class="mono">job ${id}</span><${State} state=${job.state} held=${job.held} /><span>by ${job.user} in <a href=${queueLink(job.queue)}>${job.queue}</a></span>${Object.entries(job.labels).map(([key, each]) => html`<a class="tag" href=${link("jobs", { labels: `${key}=${each}` })}>${key}=${each}</a>`)}</span>`}>
      ${mayChange && offered(job).map(deed => html`<button class=${deed === "cancel" ? "danger" : ""} onClick=${() => ask(deed, { jobs: [id] }, [`${id} ${job.name}`])}>${titleOf(deed)}</button>`)}
      ${may("jobs.submit") && html`<a class="button" href=${link("submit", { from: id })}>Submit again…</a>`}</${Head}>
    <${Tabs} label="Parts of the job" at=${tab} tabs=${tabs.map(([key, text]) => [key, text, jobLink(id, key === "overview" ? "" : key)])} />
    ${tab === "overview" ? html`<${JobOverview} job=${job} />` : tab === "logs" ? html`<${Logs} job=${job} />` : tab === "metrics" ? html`<${Metrics} job=${job} />` : tab === "events" ? html`<${Events} id=${id} />` : html`<${Specification} job=${job} />`}`;
}

// ---- overview ----

function JobOverview({ job }) {
  const isOver = ENDED.includes(job.state), run = ranMs(job), waited = job.started_ms ? Math.max(0, (job.ended_ms ?? now.value) - job.submitted_ms - run) : (job.ended_ms ?? now.value) - job.submitted_ms;
  const cost = job.history.reduce((sum, each) => sum + each.gpu_ms + (each.ended_ms === null ? Math.max(0, now.value - job.read_ms) * gpusNow(job, each) : 0), 0), lost = job.history.reduce((sum, each) => sum + each.lost_gpu_ms, 0);
  const model = nodes.value.get(job.history.at(-1)?.nodes[0])?.model, paid = money(prices.value, model, cost);
  const failed = [...job.history].reverse().find(each => each.first_failure);
  const slow = job.gangs.flatMap(gang => gang.slow_ranks);
  return html`<div class="stack">
    ${job.state === "failed" && html`<${Notice} level="error"><b>${job.why || `It failed: ${job.failure}`}</b>${failed && html`<div>${failed.first_failure.text}</div>${failed.first_failure.said && html`<pre>${failed.first_failure.said}</pre>`}`}<div><a href=${jobLink(job.id, "logs")}>Read the log</a></div></${Notice}>`}
    ${slow.length > 0 && html`<${Notice} level="warning"><b>The others wait for slow ranks</b>${slow.map(text => html`<div>${text}</div>`)}</${Notice}>`}
    ${job.state === "waiting" && html`<${Why} job=${job} />`}
    <${Panel} title="Summary"><${Facts} facts=${[["GPUs", `${count(job.gpus)}${job.gpus_held && job.gpus_held !== job.gpus ? ` (holds ${count(job.gpus_held)})` : ""}`], ["Tasks", count(job.tasks)], ["Priority", job.priority], ["Submitted", html`<${Time} ms=${job.submitted_ms} />`], ["Waited", span(waited)], ["Run time", run === null ? "–" : span(run)],
      job.time_limit_ms && ["Time limit", html`${span(job.time_limit_ms)}${run !== null && !isOver ? html` <span class="dim">(${percent((100 * lastRun(job)) / job.time_limit_ms)} used)</span>` : ""}`], ["Cost", `${hours(cost)} GPU-hours${paid ? `, ${paid}` : ""}`], ["Lost", lost ? `${hours(lost)} GPU-hours` : "nothing"], ["Attempts", count(job.attempts)], isOver && ["Exit code", job.exit_code ?? "–"], ["Checkpoints", job.checkpoints ? lastSave(job) : "not saved"], job.after.length > 0 && ["After", job.after.map(each => html`<a href=${jobLink(each.replace(/\D.*$/, ""))}>${each}</a> `)]]} /><div class="gap"></div><h3>Command</h3><pre>${job.command.join(" ")}</pre></${Panel}>
    <${Timeline} job=${job} /><${Placement} job=${job} /></div>`;
}
// How long it has held its seats: the time in which any of its attempts did, without the time between them.
function ranMs(job) {
  const spans = job.history.filter(each => each.started_ms).map(each => [each.started_ms, each.ended_ms ?? now.value]).sort((a, b) => a[0] - b[0]);
  if (!spans.length) return null;
  let sum = 0, upto = 0;
  for (const [start, end] of spans) { sum += Math.max(0, end - Math.max(start, upto)); upto = Math.max(upto, end); }
  return sum;
}
// A time limit is for each attempt.
const lastRun = job => Math.max(0, ...job.history.filter(each => each.started_ms && each.ended_ms === null).map(each => now.value - each.started_ms));
// The server says what each attempt has held; what it holds since then is added with the GPUs that it has now.
const gpusNow = (job, attempt) => job.gangs.find(each => each.id === attempt.gang)?.gpus ?? 0;
const lastSave = job => { const steps = job.gangs.map(gang => gang.saved_step).filter(step => step !== null); return steps.length ? `step ${count(Math.min(...steps))}` : "none yet"; };

function Timeline({ job }) {
  const shown = job.history.slice(-30), from = job.submitted_ms, to = Math.max(...job.history.map(each => each.ended_ms ?? now.value), job.ended_ms ?? now.value, from + 1000);
  const place = (start, end) => ({ left: `${(100 * (start - from)) / (to - from)}%`, width: `${Math.max(0.2, (100 * (end - start)) / (to - from))}%` });
  const bars = (each, before) => {
    const end = each.ended_ms ?? now.value, found = [];
    if (each.placed_ms > before) found.push(["k-wait", before, each.placed_ms, `waited ${span(each.placed_ms - before)}`]);
    found.push(["k-start", each.placed_ms, each.started_ms ?? end, `starting ${span((each.started_ms ?? end) - each.placed_ms)}`]);
    if (each.started_ms) found.push([each.failure && each.failure !== "preempted" ? "k-failed" : "k-run", each.started_ms, end, `running ${span(end - each.started_ms)}`]);
    return found;
  };
  const last = {};
  const rows = shown.map(each => { const before = last[each.gang] ?? job.submitted_ms; last[each.gang] = each.ended_ms ?? now.value; return [each, bars(each, before)]; });
  if (job.state === "waiting") // those that wait again since their last attempt
    for (const [gang, since] of Object.entries(last)) { const row = rows.findLast(([each]) => each.gang === gang); if (row && row[0].ended_ms !== null && !["succeeded", "cancelled"].includes(job.gangs.find(each => each.id === gang)?.state)) row[1].push(["k-wait", since, now.value, `waits for ${span(now.value - since)}`]); }
  const how = each => (each.ended_ms === null ? job.gangs.find(gang => gang.id === each.gang)?.state || "running" : each.cause && each.beneficiary ? html`${each.cause} for <a href=${jobLink(each.beneficiary.replace(/\D.*$/, ""))}>${each.beneficiary}</a>` : each.failure || each.cause || `exit ${each.exit_code ?? 0}`);
  return html`<${Panel} title="Attempts" actions=${html`<div class="legend"><span class="key"><i class="swatch k-wait"></i>waiting</span><span class="key"><i class="swatch k-start"></i>starting</span><span class="key"><i class="swatch k-run"></i>running</span><span class="key"><i class="swatch k-failed"></i>failed</span></div>`} foot=${job.history.length > shown.length ? `The last ${shown.length} of ${count(job.history.length)} attempts.` : null}>
    ${rows.length ? html`<div class="timeline">${rows.map(([each, drawn]) => html`<div class="attempt"><span class="cut"><span class="mono">${each.gang}</span> <span class="dim">#${each.attempt}</span></span><span class="track" role="img" aria-label=${drawn.map(bar => bar[3]).join(", ")}>${drawn.map(([kind, start, end, text]) => html`<i class=${kind} style=${place(start, end)} title=${text}></i>`)}</span><span class="cut" title=${each.nodes.join(", ")}>${how(each)} <span class="dim">${each.nodes.slice(0, 2).join(", ")}${each.nodes.length > 2 ? ` +${each.nodes.length - 2}` : ""}</span></span></div>`)}</div>` : html`<span class="dim">It has not started yet.</span>`}</${Panel}>`;
}

function Placement({ job }) {
  const seats = job.gangs.flatMap(gang => gang.seats.map(seat => ({ ...seat, gang: gang.id, state: gang.state })));
  if (!seats.length) return null;
  const by = new Map();
  for (const seat of seats) { if (!by.has(seat.node)) by.set(seat.node, []); by.get(seat.node).push(seat); }
  return html`<${Panel} title="Placement" flush actions=${html`<span class="dim">${plural(by.size, "node")}</span>`}><div class="scrolls" tabindex="0"><table><thead><tr><th>Node</th><th>Place</th><th>GPUs of the job</th><th>All GPUs of the node</th><th>Tasks</th></tr></thead><tbody>${[...by].slice(0, 64).map(([name, list]) => { const cell = nodes.value.get(name); const own = new Set(list.flatMap(seat => seat.gpus)); return html`<tr><td><a href=${nodeLink(name)}>${name}</a></td><td class="dim">${cell?.path.join(" / ") || "–"}</td><td class="num">${[...own].sort((a, b) => a - b).join(", ") || "–"}</td><td>${cell ? html`<${GpuRow} gpus=${cell.gpus} />` : "–"}</td><td class="num">${list.map(seat => seat.task).slice(0, 12).join(", ")}</td></tr>`; })}</tbody></table></div></${Panel}>`;
}

// ---- the other parts ----

function Logs({ job }) {
  const tasks = (job.gangs.length ? job.gangs : [...new Map(job.history.map(each => [each.gang, each])).values()].map(each => ({ id: each.gang, role: each.role, index: each.index, tasks: Math.max(1, each.nodes.length), seats: each.nodes.map((node, n) => ({ task: n, node })) }))).slice(0, 200)
    .flatMap(gang => Array.from({ length: gang.seats?.length || gang.tasks || 1 }, (_, n) => ({ gang: gang.index === null || gang.index === undefined ? gang.role || "" : `${gang.index}/${gang.role}`, task: n, title: `${gang.index !== null && gang.index !== undefined ? `element ${gang.index}, ` : ""}task ${n}${gang.seats?.[n] ? ` on ${gang.seats[n].node}` : ""}` }))).slice(0, 1000);
  return html`<${LogViewer} job=${job.id} tasks=${tasks} isOver=${ENDED.includes(job.state)} />`;
}

const charts = [
  ["GPU utilisation", [["utilisation", "mean", "blue"]], percent, 100], ["GPU memory", [["gpu_memory_mib", "in use", "purple"]], mib], ["Power", [["power_w", "all GPUs", "amber"]], each => `${value(each)} W`],
  ["CPU", [["cpu", "CPUs busy", "teal"]], value, undefined, 0.1], ["Memory", [["memory_mib", "in use", "green"]], mib], ["Time of a step", [["step_ms", "rank 0", "red"]], span],
];

function Metrics({ job }) {
  const range = params.value.get("range") || "1h", found = useSeries([`job/${job.id}/*`, ...charts.flatMap(([, lines]) => lines.map(([name]) => `job/${job.id}/${name}`))], range);
  const [activity, setActivity] = useState(null);
  useEffect(() => { let over = false; const read = () => get(`jobs/${part(job.id)}/activity`).then(each => !over && setActivity(each)).catch(() => {}); read(); const timer = setInterval(read, 5000); return () => { over = true; clearInterval(timer); }; }, [job.id]);
  const own = (found?.series || []).filter(each => each.name.startsWith(`job/${job.id}/metric/`)).map(each => each.name);
  const known = new Set((found?.series || []).filter(each => each.values.some(point => point !== null)).map(each => each.name)), isMeasured = ([, lines]) => lines.some(([name]) => known.has(`job/${job.id}/${name}`)), missing = found ? charts.filter(each => !isMeasured(each)).map(([title]) => title.replace(/^[A-Z](?=[a-z])/, first => first.toLowerCase())) : [];
  const colours = ["red", "blue", "green", "purple", "teal", "amber"];
  return html`<div class="stack"><div class="row"><span class="grow"></span><${Switch} label="Time range" options=${RANGES} value=${range} onChange=${key => setParams({ range: key === "1h" ? "" : key })} /></div>
    ${activity?.notes.map(note => html`<${Notice} level="warning">${note}</${Notice}>`)}
    <div class="grid">${own.map((name, n) => { const label = name.split("/metric/")[1], lines = [{ name, label, colour: colours[n % 6] }]; return html`<div class="w6"><${Panel} title=${label}><${Chart} found=${found} lines=${lines} label=${label} /></${Panel}></div>`; })}
    ${charts.filter(isMeasured).map(([title, lines, format, max, least]) => { const drawn = lines.map(([name, label, colour]) => ({ name: `job/${job.id}/${name}`, label, colour, fill: true })); return html`<div class="w6"><${Panel} title=${title} actions=${html`<${ChartKey} lines=${drawn} />`}><${Chart} found=${found} lines=${drawn} format=${format} max=${max} least=${least} height=${150} label=${title} /></${Panel}></div>`; })}</div>
    ${missing.length > 0 && html`<p class="dim">Not measured in this time: ${missing.join(", ")}.${missing.length === charts.length ? " Figures appear here while the job runs." : ""}</p>`}
    ${activity?.tasks.length ? html`<${Ranks} activity=${activity} />` : !ENDED.includes(job.state) ? null : html`<${Notice}>The job has ended; what its ranks did last is not kept.</${Notice}>`}
    ${!own.length && html`<p class="dim prose">Your own figures, such as the loss, appear here when the program reports them: <code>corral_training.report(step, loss=loss)</code>.</p>`}</div>`;
}

function Ranks({ activity }) {
  const ranks = activity.tasks.flatMap(task => task.ranks.map(rank => ({ ...rank, node: task.node }))), steps = ranks.map(rank => rank.step_ms).filter(Boolean).sort((a, b) => a - b), usual = steps[Math.floor(steps.length / 2)];
  return html`<${Panel} title="Now, by task" flush><div class="scrolls" tabindex="0"><table><thead><tr><th>Task</th><th>Node</th><th>GPUs: utilisation, memory, power, temperature</th><th class="r">CPU</th><th class="r">Memory</th><th class="r">Step</th><th class="r">Time of a step</th></tr></thead><tbody>${activity.tasks.slice(0, 200).map(task => html`<tr><td class="mono">${task.gang} #${task.task}</td><td><a href=${nodeLink(task.node)}>${task.node}</a></td>
    <td class="num">${task.gpus.map(gpu => html`<div>${gpu.slot}: ${percent(gpu.utilisation_percent)}, ${mib(gpu.memory_used_mib)}${gpu.power_mw !== null ? `, ${value(gpu.power_mw / 1000)} W` : ""}${gpu.temperature_c !== null ? `, ${gpu.temperature_c} °C` : ""}</div>`)}</td><td class="r">${task.cpu_milli === null ? "–" : value(task.cpu_milli / 1000)}</td><td class="r">${mib(task.memory_mib)}</td>
    <td class="r">${task.ranks.map(rank => html`<div>${count(rank.step)}</div>`)}</td><td class="r">${task.ranks.map(rank => html`<div class=${usual && rank.step_ms > 1.5 * usual ? "c-red" : ""}>${rank.step_ms ? span(rank.step_ms) : "–"}${usual && rank.step_ms > 1.5 * usual ? " slow" : ""}</div>`)}</td></tr>`)}</tbody></table></div></${Panel}>`;
}

function Events({ id }) {
  const [found, setFound] = useState([]), [next, setNext] = useState(0), [problem, setProblem] = useState(null);
  useEffect(() => {
    let over = false, after = 0, all = [];
    const read = async () => { try { for (let n = 0; n < 20; n++) { const answer = await get("events", { job: id, after, limit: 500 }); all = [...all, ...answer.events]; after = answer.next; if (answer.next >= answer.head) break; } if (!over) { setFound([...all].reverse()); setNext(after); setProblem(null); } } catch (each) { if (!over) setProblem(each); } };
    read();
    const undo = onJobs((jobs, more) => { if (more || jobs.some(job => job.id === id)) read(); });
    return () => { over = true; undo(); };
  }, [id]);
  return html`<${ProblemNotice} problem=${problem} /><${Panel} title="Events" flush foot=${next ? `Complete up to record ${count(next)} of the journal.` : null}><${EventList} events=${found.slice(0, 500)} /></${Panel}>`;
}

function Specification({ job }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => { get(`jobs/${part(job.id)}/document`).then(setFound).catch(setProblem); }, [job.id]);
  const text = found ? toYaml(found.document) : "";
  const copy = () => navigator.clipboard.writeText(text).then(() => toast("Copied.")).catch(() => toast("The browser does not allow to copy.", "error"));
  return html`<${ProblemNotice} problem=${problem} /><${Panel} title="Job file" actions=${html`<button class="small" onClick=${copy}>Copy</button>${may("jobs.submit") && html`<button class="small primary" onClick=${() => go("submit", { from: job.id })}>Edit and submit again</button>`}`}>${found ? html`<pre>${text}</pre>` : html`<${Empty} title="Loading…" />`}</${Panel}>`;
}
