// Icons as outlines of 16 units, drawn in the colour of the text. Decorations: the text beside them says the same.
import { html } from "../lib/ui.js";

const paths = {
  overview: "M2 9h5V2H2zM9 14h5V7H9zM2 14h5v-3H2zM9 5h5V2H9z",
  jobs: "M3 4h10M3 8h10M3 12h6",
  map: "M2 3h5v4H2zM9 3h5v4H9zM2 9h5v4H2zM9 9h5v4H9z",
  gantt: "M2 4h6M5 8h7M9 12h5",
  queues: "M8 2v4M8 6H4v4M8 6h4v4M2.500 10h3v3h-3zM10.500 10h3v3h-3z",
  submit: "M8 13V3M4 7l4-4 4 4",
  batching: "M2 3h5v4H2zM2 9h5v4H2zM7 5h2.500v6H7M9.500 8H14M12 6l2 2-2 2",
  usage: "M3 13V9M7 13V4M11 13V7M2 14h12",
  events: "M8 4.500V8l2.500 1.500M8 14A6 6 0 108 2a6 6 0 000 12z",
  fleets: "M2 11.500h12M4 11.500A3 3 0 014.500 5.600 4 4 0 0112 6.500a2.600 2.600 0 010 5",
  access: "M8 8a2.500 2.500 0 100-5 2.500 2.500 0 000 5zM3 14a5 5 0 0110 0",
  menu: "M2 4h12M2 8h12M2 12h12",
  sun: "M8 11a3 3 0 100-6 3 3 0 000 6zM8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13 9.500A5.500 5.500 0 016.500 3a5.500 5.500 0 106.500 6.500z",
  running: "M8 14A6 6 0 108 2a6 6 0 000 12zM6.500 5.500l4 2.500-4 2.500z",
  waiting: "M8 14A6 6 0 108 2a6 6 0 000 12zM8 5v3h2.500",
  starting: "M8 2a6 6 0 016 6M8 14a6 6 0 01-6-6",
  stopping: "M8 14A6 6 0 108 2a6 6 0 000 12zM6 6h4v4H6z",
  succeeded: "M8 14A6 6 0 108 2a6 6 0 000 12zM5.500 8l1.800 1.800L10.500 6.500",
  failed: "M8 14A6 6 0 108 2a6 6 0 000 12zM6 6l4 4M10 6l-4 4",
  cancelled: "M8 14A6 6 0 108 2a6 6 0 000 12zM4 12l8-8",
  held: "M8 14A6 6 0 108 2a6 6 0 000 12zM6.500 5.500v5M9.500 5.500v5",
  error: "M8 2l6.500 12h-13zM8 6.500v3.500M8 12v.1",
  info: "M8 14A6 6 0 108 2a6 6 0 000 12zM8 7.500V11M8 5v.1",
  good: "M8 14A6 6 0 108 2a6 6 0 000 12zM5.500 8l1.800 1.800L10.500 6.500",
};
paths.warning = paths.error;

export const Icon = ({ name, size = 16 }) => html`<svg viewBox="0 0 16 16" width=${size} height=${size} fill="none" stroke="currentColor"
  stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${paths[name] || paths.info} /></svg>`;
