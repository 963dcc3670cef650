// Events of the record as sentences, with when, who, and a link to what they are about.
import { html } from "../lib/ui.js";
import { jobLink, nodeLink, queueLink } from "../lib/route.js";
import { Empty, Time } from "./basics.js";

const NODE = /\bnode (\S+?)(?=[:,.]?(\s|$))/;

// The record names gangs by their numbers alone.
const sentence = event => (event.gang && /^\d/.test(event.text) ? `job ${event.text}` : event.text);

export function EventText({ event }) {
  if (event.job) return html`<a href=${jobLink(event.job)}>${sentence(event)}</a>`;
  if (event.queue) return html`<a href=${queueLink(event.queue)}>${event.text}</a>`;
  const node = NODE.exec(event.text);
  return node && event.type.startsWith("Node") ? html`<a href=${nodeLink(node[1])}>${event.text}</a>` : event.text;
}

export const EventList = ({ events }) => events.length
  ? html`<ul class="list">${events.map(event => html`<li key=${`${event.seq}`}><${Time} ms=${event.at_ms} /><div class="grow"><${EventText} event=${event} />${event.actor !== "system" && html` <span class="dim">by ${event.actor}</span>`}</div></li>`)}</ul>`
  : html`<${Empty} title="No events yet">Everything that happens is recorded here.</${Empty}>`;
