// Why a job waits: every reason, who is in the way, and the smallest changes that would start it, each with a button
// where the viewer may do it.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part, post } from "../lib/api.js";
import { may, onJobs } from "../lib/live.js";
import { count, gpus, now, span } from "../lib/format.js";
import { go, jobLink } from "../lib/route.js";
import { Notice, Panel, ProblemNotice, Time } from "./basics.js";
import { act, confirm, toast } from "./dialog.js";

export function Why({ job }) {
  const [why, setWhy] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => {
    let over = false;
    const read = () => get(`jobs/${part(job.id)}/why`).then(found => { if (!over) { setWhy(found); setProblem(null); } }).catch(found => { if (!over) setProblem(found); });
    read();
    const timer = setInterval(read, 10000), undo = onJobs(jobs => { if (jobs.some(each => each.id === job.id)) read(); });
    return () => { over = true; clearInterval(timer); undo(); };
  }, [job.id, job.state]);
  if (!why && !problem) return html`<${Panel} title="Why it waits"><span class="dim">Asking the planner…</span></${Panel}>`;
  return html`<${Panel} title="Why it waits" foot=${why && why.gangs_waiting > why.gangs.length ? `The first ${why.gangs.length} of ${count(why.gangs_waiting)} waiting gangs.` : null}><${ProblemNotice} problem=${problem} /><div class="stack">${why?.gangs.map(gang => html`<${GangWhy} job=${job} gang=${gang} many=${why.gangs.length > 1} />`)}${why && !why.gangs.length && html`<span class="dim">It does not wait.</span>`}</div></${Panel}>`;
}

function GangWhy({ job, gang, many }) {
  return html`<div class="stack s">${many && html`<h3 class="mono">${gang.gang}</h3>`}
    ${gang.starts_ms ? html`<${Notice}><b>Expected to start in ${span(gang.starts_ms - now.value)}</b> <span class="dim">(<${Time} ms=${gang.starts_ms} absolute />)</span><div class="dim">By the time limits and estimates of what runs now: earlier if they end earlier, later if something more important comes.</div></${Notice}>` : html`<div class="dim">When it will start is not known yet.</div>`}
    <ol style=${{ margin: 0, paddingLeft: "20px" }}>${gang.reasons.map(reason => html`<li>${reason.text}</li>`)}</ol>
    ${gang.in_the_way.length > 0 && html`<h3>In the way</h3><div class="scrolls" tabindex="0"><table><thead><tr><th>Job</th><th>Queue</th><th>User</th><th class="r">GPUs</th><th>Ends</th></tr></thead><tbody>${gang.in_the_way.map(each => html`<tr><td>${each.job ? html`<a href=${jobLink(each.job)}>${each.gang}</a>` : html`<span class="dim">another job</span>`}</td><td>${each.queue || "–"}</td><td>${each.user || "–"}</td><td class="r">${gpus(each.gpu_milli)}</td><td><${Time} ms=${each.ends_ms} />${each.assumption && html` <span class="dim">(${each.assumption})</span>`}</td></tr>`)}</tbody></table></div>`}
    ${gang.changes.length > 0 && html`<h3>Any of these would let it start now</h3><ul class="list">${gang.changes.map(change => html`<li><span class="grow">${change.text}</span>${may("jobs.change") && html`<button class="small" onClick=${() => apply(job, change)}>${change.field === "priority" ? `Set priority ${change.value}` : "Change and submit again…"}</button>`}</li>`)}</ul>`}</div>`;
}

function apply(job, change) {
  if (change.field === "priority")
    return confirm({ title: `Set the priority of job ${job.id} to ${change.value}?`, body: html`<p>${change.text}. Jobs with a lower priority may be preempted for it.</p>`, action: "Set the priority", run: async () => { await post(`jobs/${part(job.id)}/priority`, { priority: Number(change.value) }); toast("The priority was changed."); } });
  return act(async () => go("submit", { from: job.id, set: `${change.field}=${change.value}` }));
}
