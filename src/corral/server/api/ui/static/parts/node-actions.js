// What an operator can do with a node. Offered only to those who may.
import { html } from "../lib/ui.js";
import { part, post } from "../lib/api.js";
import { may } from "../lib/live.js";
import { plural } from "../lib/format.js";
import { confirm, toast } from "./dialog.js";

const busy = node => new Set(node.jobs.filter(Boolean)).size;
const deed = async (node, word, body) => { await post(`nodes/${part(node.name)}/${word}`, body); toast(`Node ${node.name}: ${word}.`); };

export function NodeActions({ node }) {
  if (!may("nodes.change")) return null;
  const isDrained = ["draining", "drained"].includes(node.state);
  const drain = () => confirm({ title: `Drain ${node.name}?`, danger: true, action: "Drain", body: html`<p>${busy(node) ? `${plural(busy(node), "job")} on it will be warned, may save, and wait for another start.` : "Nothing runs on it."} Nothing new starts on it until it is undrained.</p><label class="field">Why<input name="why" placeholder="new fans" /></label>`, run: form => deed(node, "drain", { why: form.get("why") }) });
  const plain = (word, text) => confirm({ title: `${word[0].toUpperCase()}${word.slice(1)} ${node.name}?`, action: word[0].toUpperCase() + word.slice(1), body: html`<p>${text}</p>`, run: () => deed(node, word) });
  return html`${isDrained ? html`<button class="small" onClick=${() => plain("undrain", "Jobs start on it again.")}>Undrain</button>` : html`<button class="small danger" onClick=${drain}>Drain…</button>`}
    ${node.state === "cordoned" ? html`<button class="small" onClick=${() => plain("uncordon", "Jobs start on it again.")}>Uncordon</button>` : !isDrained && html`<button class="small" onClick=${() => plain("cordon", "Nothing new starts on it; its jobs finish.")}>Cordon</button>`}`;
}
