// Batching queues: short requests that workers run in batches; how full the batches are, how long items wait, and what
// can be done with a queue.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part, post, remove } from "../lib/api.js";
import { may } from "../lib/live.js";
import { count, percent, plural, span, value } from "../lib/format.js";
import { jobLink, queueLink } from "../lib/route.js";
import { Empty, Facts, Head, Notice, Panel, ProblemNotice } from "../parts/basics.js";
import { act, confirm, toast } from "../parts/dialog.js";

const EVERY_MS = 3000;

function useBatchQueues() {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), [turn, setTurn] = useState(0);
  useEffect(() => {
    let over = false;
    const read = () => get("batch").then(answer => { if (!over) { setFound(answer.batch_queues); setProblem(null); } }).catch(each => !over && setProblem(each));
    read();
    const timer = setInterval(() => { if (!document.hidden) read(); }, EVERY_MS);
    return () => { over = true; clearInterval(timer); };
  }, [turn]);
  return [found, problem, () => setTurn(turn + 1)];
}

function Actions({ queue, again }) {
  if (!may("jobs.change")) return null;
  const drain = () => confirm({ title: `Drain ${queue.name}?`, action: "Drain", body: html`<p>It takes no more items. ${plural(queue.stats.waiting, "waiting item is", "waiting items are")} still run, and then its workers end.</p>`, run: async () => { await post(`batch/${part(queue.name)}/drain`); toast(`${queue.name} is draining.`); again(); } });
  const resume = () => confirm({ title: `Undrain ${queue.name}?`, action: "Undrain", body: html`<p>It takes items again, and workers start when there are some.</p>`, run: async () => { await post(`batch/${part(queue.name)}/undrain`); toast(`${queue.name} takes items again.`); again(); } });
  const drop = () => confirm({ title: `Remove ${queue.name}?`, danger: true, action: "Remove", body: html`<p>${plural(queue.stats.waiting + queue.stats.running, "unfinished item")} and all results that were not fetched are deleted, and its workers end.</p>`, run: async () => { await remove(`batch/${part(queue.name)}`); toast(`${queue.name} was removed.`); again(); } });
  const flush = () => act(async () => { await post(`batch/${part(queue.name)}/flush`); again(); }, "What waits is dispatched now.");
  return html`<button class="small" disabled=${!queue.stats.waiting} onClick=${flush}>Flush</button>${queue.is_draining ? html`<button class="small" onClick=${resume}>Undrain…</button>` : html`<button class="small" onClick=${drain}>Drain…</button>`}<button class="small danger" onClick=${drop}>Remove…</button>`;
}

function BatchQueue({ queue, again }) {
  const stats = queue.stats, refused = Object.entries(stats.refused);
  return html`<${Panel} title=${queue.name} actions=${html`${queue.is_draining && html`<span class="tag">draining</span>`}<${Actions} queue=${queue} again=${again} />`}><div class="stack s">
    ${queue.problem && html`<${Notice} level="error">${queue.problem}</${Notice}>`}
    <${Facts} facts=${[["Waiting", plural(stats.waiting, "item")], ["Running", plural(stats.running, "item")], ["Workers", count(stats.workers)], ["Done", count(stats.done)], ["Failed", count(stats.failed)],
      ["Batches", count(stats.batches)], ["Items in a batch", stats.batches ? `${value(stats.mean_size)} of ${count(queue.settings.max_batch_size)} (${percent(100 * stats.fill)})` : "–"],
      ["Wait, median", span(stats.wait_p50_ms)], ["Wait, 95 %", span(stats.wait_p95_ms)], ["Until the result, 95 %", span(stats.latency_p95_ms)],
      ["Charged to", html`<a href=${queueLink(queue.queue)}>${queue.queue}</a>`], ["Owner", queue.owner], ["Handler", html`<code>${queue.settings.handler}</code>`]]} />
    ${refused.length > 0 && html`<div class="dim">Refused: ${refused.map(([why, times]) => `${why} ${count(times)}`).join(", ")}</div>`}
    ${queue.jobs.length > 0 && html`<div>Workers are the jobs ${queue.jobs.slice(0, 12).map(job => html`<a href=${jobLink(job)}>${job}</a> `)}${queue.jobs.length > 12 ? `and ${queue.jobs.length - 12} more` : ""}</div>`}</div></${Panel}>`;
}

export default function Batching() {
  const [found, problem, again] = useBatchQueues();
  return html`<${Head} title="Batching" note="Short GPU requests, grouped by model and run by workers" /><${ProblemNotice} problem=${problem} />
    ${found && !found.length ? html`<${Panel}><${Empty} title="No batching queues"><p>Create one from a file: <code>corral batch create embed.yaml</code></p></${Empty}></${Panel}>` : html`<div class="stack">${(found || []).map(queue => html`<${BatchQueue} key=${queue.name} queue=${queue} again=${again} />`)}</div>`}`;
}
