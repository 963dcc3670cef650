// Where the viewer is: the part of the address after "#", as signals. Works under any path, and a view with all its
// filters is one link. Knows no page.
import { signal, batch } from "./ui.js";

export const path = signal([]);
export const params = signal(new URLSearchParams());

function read() {
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  batch(() => {
    path.value = where.split("/").filter(Boolean).map(decodeURIComponent);
    params.value = new URLSearchParams(query);
  });
}

export function link(where, query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) if (value !== "" && value !== null && value !== undefined) found.set(name, value);
  const text = found.toString();
  return `#/${where}${text ? `?${text}` : ""}`;
}

export const jobLink = (id, tab) => link(`jobs/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`);
export const nodeLink = name => link(`nodes/${encodeURIComponent(name)}`);
export const queueLink = name => link("queues", { queue: name });

export function go(where, query) { location.hash = link(where, query); }

// Change some parameters of the present view; without a step in the history, so that "back" leaves the view.
export function setParams(changes) {
  const next = new URLSearchParams(params.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined || value === false) next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  history.replaceState(null, "", `#/${path.value.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
  params.value = next;
}

addEventListener("hashchange", read);
read();
