// Writes a job document as YAML. The server reads YAML; the page only writes it, so that there is one parser.
const BARE = /^[A-Za-z_./][A-Za-z0-9_./+@%=,-]*( [A-Za-z0-9_./+@%=,-]+)*$/;
const SPAN = /^[0-9]+(\.[0-9]+)?[A-Za-z]+$/;
const WORDS = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

const scalar = value => {
  if (typeof value !== "string") return JSON.stringify(value);
  return (BARE.test(value) || (SPAN.test(value) && !/^[0-9]+[eExXoO]/.test(value))) && !WORDS.test(value) ? value : JSON.stringify(value);
};

export function toYaml(value, indent = "") {
  return Object.entries(value).map(([key, each]) => `${indent}${scalar(key)}:${below(each, indent)}`).join("");
}

function below(value, indent) {
  if (Array.isArray(value)) {
    if (!value.length) return " []\n";
    if (value.some(each => typeof each === "string" && each.includes("\n")))
      return `\n${value.map(each => `${indent}  -${below(each, `${indent}  `)}`).join("")}`;
    if (value.every(each => typeof each !== "object")) return ` [${value.map(scalar).join(", ")}]\n`;
    return `\n${value.map(each => `${indent}  - ${toYaml(each, `${indent}    `).trimStart()}`).join("")}`;
  }
  if (value && typeof value === "object") return Object.keys(value).length ? `\n${toYaml(value, `${indent}  `)}` : " {}\n";
  if (typeof value === "string" && value.includes("\n")) return ` |${value.endsWith("\n") ? "" : "-"}${/^\n* /.test(value) ? 2 : ""}\n${value.replace(/\n$/, "").split("\n").map(line => `${indent}  ${line}\n`).join("")}`;
  return ` ${scalar(value)}\n`;
}
