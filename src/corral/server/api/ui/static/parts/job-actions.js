// What can be done with jobs: cancel, hold, release, requeue, another priority; one job or many at once. Before anything
// happens the server says how many jobs it would change.
import { html } from "../lib/ui.js";
import { post } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { confirm, fail, toast } from "./dialog.js";

const deeds = {
  cancel: { title: "Cancel", what: "will be stopped and not run again", danger: true, done: "cancelled" },
  hold: { title: "Hold", what: "will not start until released; what already runs goes on", done: "held" },
  release: { title: "Release", what: "may start again", done: "released" },
  requeue: { title: "Requeue", what: "will be stopped, after saving if they can, and wait for another start", danger: true, done: "requeued" },
  priority: { title: "Change the priority of", what: "will have another priority", done: "changed" },
};
export const offered = job => {
  if (["succeeded", "failed", "cancelled"].includes(job.state)) return [];
  const found = ["cancel", "priority"];
  if (["running", "starting"].includes(job.state)) found.push("requeue");
  found.push(job.held ? "release" : "hold");
  return found;
};
export const titleOf = deed => ({ cancel: "Cancel", hold: "Hold", release: "Release", requeue: "Requeue", priority: "Priority" })[deed];

// which: { jobs: [ids] } or { filter: {...} }
export async function ask(deed, which, names, done = () => {}) {
  const about = deeds[deed];
  let found;
  try { found = await post("jobs/change", { change: deed, ...which, ...(deed === "priority" ? { priority: 0 } : {}), dry_run: true }); } catch (problem) { fail(problem); return; }
  if (!found.matched) { toast("No unfinished job matches.", "info"); return; }
  const many = found.matched === 1 ? "1 job" : `${found.matched} jobs`;
  confirm({
    title: `${about.title} ${many}?`, danger: about.danger, action: `${about.title} ${many}`,
    body: html`<p>${plural(found.matched, "job")} ${about.what}.</p>${names?.length ? html`<ul class="list">${names.slice(0, 8).map(name => html`<li>${name}</li>`)}${names.length > 8 && html`<li class="dim">and ${names.length - 8} more</li>`}</ul>` : null}
      ${deed === "priority" && html`<label class="field">Priority<input name="priority" type="number" required value="0" autofocus /><small>Higher is served first, within the ceiling of the queue.</small></label>`}
      ${deed === "cancel" && html`<label class="check"><input type="checkbox" name="now" />At once, without time to save</label>`}`,
    run: async form => {
      const answer = await post("jobs/change", { change: deed, ...which, expect: found.matched, now: form.get("now") === "on", ...(deed === "priority" ? { priority: Number(form.get("priority")) } : {}) });
      toast(`${plural(answer.changed, "job")} ${about.done}.`);
      for (const refused of answer.refusals.slice(0, 3)) toast(`Job ${refused.job}: ${refused.why}`, "error");
      done(answer);
    },
  });
}
