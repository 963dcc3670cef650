// Small parts that every page uses: states, times, panels, notices, empty states, tabs. Knows how things look, and the
// words of states; no requests.
import { html } from "../lib/ui.js";
import { ago, clock, count, fullTime, now } from "../lib/format.js";
import { Icon } from "./icons.js";

const colours = {
  waiting: "amber", starting: "teal", running: "blue", broken: "red", stopping: "purple", succeeded: "green", failed: "red",
  cancelled: "grey", held: "grey", open: "green", healthy: "green", cordoned: "amber", draining: "purple", drained: "grey",
  sick: "red", lost: "red", suspect: "amber",
};
const icons = { open: "succeeded", healthy: "succeeded", cordoned: "held", draining: "stopping", drained: "cancelled", sick: "error", lost: "failed", suspect: "error", broken: "failed" };

export const colourOf = state => colours[state] || "grey";
export const State = ({ state, held }) => {
  const word = held && state === "waiting" ? "held" : state;
  return html`<span class="state c-${colourOf(word)}"><${Icon} name=${icons[word] || word} size=${13} />${word}</span>`;
};

export const Time = ({ ms, absolute }) => ms
  ? html`<time datetime=${new Date(ms).toISOString()} title=${fullTime(ms)}>${absolute ? clock(ms) : ago(ms, now.value)}</time>`
  : html`<span class="dim">–</span>`;

export const Panel = ({ title, actions, children, foot, flush, id }) => html`<section class="panel" aria-label=${title} id=${id}>
  ${title && html`<header><h2>${title}</h2><span class="grow"></span>${actions}</header>`}
  ${flush ? children : html`<div class="body">${children}</div>`}${foot && html`<footer>${foot}</footer>`}</section>`;

export const Notice = ({ level = "info", children }) => html`<div class="notice ${level}" role=${level === "error" ? "alert" : "status"}>
  <${Icon} name=${level} /><div class="grow">${children}</div></div>`;

export const ProblemNotice = ({ problem }) => problem && html`<${Notice} level="error"><b>${problem.message}</b>
  ${problem.hint && html`<div>${problem.hint}</div>`}
  ${problem.faults?.map(fault => html`<div><code>${fault.path.join(".")}</code> ${fault.why}${fault.hint && ` (${fault.hint})`}</div>`)}</${Notice}>`;

export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

export const Head = ({ title, note, children }) => html`<div class="head"><div class="grow"><h1 tabindex="-1">${title}</h1>${note && html`<div class="dim">${note}</div>`}</div>${children}</div>`;

export const Tabs = ({ tabs, at, label }) => html`<nav class="tabs" aria-label=${label}>${tabs.map(([key, text, href]) =>
  html`<a href=${href} aria-current=${key === at ? "page" : null}>${text}</a>`)}</nav>`;

export const Switch = ({ options, value, onChange, label }) => html`<div class="switch" role="group" aria-label=${label}>${options.map(([key, text]) =>
  html`<button type="button" aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}</button>`)}</div>`;

export const Facts = ({ facts }) => html`<dl class="facts">${facts.filter(Boolean).map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>`;

export const gpuWords = [["running", "running"], ["held", "held"], ["free", "free"], ["closed", "closed"], ["sick", "sick"], ["lost", "lost"]];

// The GPUs of a cluster or a model as one bar, with its numbers as text.
export const GpuMeter = ({ gpus, big, legend }) => {
  const total = gpus.total || 1;
  const shown = gpuWords.filter(([word]) => gpus[word]);
  const text = shown.map(([word]) => `${gpus[word]} ${word}`).join(", ") || "no GPUs";
  return html`<div class="stack s"><div class="meter ${big ? "big" : ""}" role="img" aria-label=${text}>${shown.map(([word]) =>
    html`<i class="g-${word}" style=${{ width: `${(100 * gpus[word]) / total}%` }}></i>`)}</div>
    ${legend && html`<div class="legend">${gpuWords.map(([word, name]) => (gpus[word] || ["running", "free"].includes(word)) && html`<span class="key"><i class="swatch g-${word}"></i><b>${count(gpus[word])}</b> ${name}</span>`)}</div>`}</div>`;
};

// One square for each GPU of a node.
const letters = { r: "running", h: "held", f: "free", c: "closed", s: "sick", l: "lost" };
export const GpuRow = ({ gpus }) => html`<span class="gpus" role="img" aria-label=${[...gpus].map(letter => letters[letter]).join(", ")}>${[...gpus].map(letter => html`<i class="g-${letters[letter]}"></i>`)}</span>`;
export const letterWord = letter => letters[letter];
