// People and what they may do: users with roles, tokens and sessions, secrets. Only what the viewer may see is here, and
// only what they may do is offered.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part, post, put, remove } from "../lib/api.js";
import { may, me, queues, useNews } from "../lib/live.js";
import { count } from "../lib/format.js";
import { link, path } from "../lib/route.js";
import { Empty, Head, Panel, ProblemNotice, Tabs, Time } from "../parts/basics.js";
import { confirm, toast } from "../parts/dialog.js";

const ROLES = ["viewer", "member", "lead", "operator", "administrator"];

function useList(name, field) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), [turn, setTurn] = useState(0), news = useNews(5000);
  useEffect(() => { let over = false; get(name).then(answer => { if (!over) { setFound(answer[field]); setProblem(null); } }).catch(each => !over && setProblem(each)); return () => { over = true; }; }, [name, turn, news]);
  return [found, problem, () => setTurn(turn + 1)];
}
const QueueSelect = ({ name = "queue", all }) => html`<label class="field">Queue<select name=${name}>${all && html`<option value="">the whole cluster</option>`}${queues.value.filter(queue => queue.name).map(queue => html`<option value=${queue.name}>${queue.name}</option>`)}</select></label>`;

function Users() {
  const [users, problem, again] = useList("users", "users");
  const create = () => confirm({ title: "New user", action: "Create", body: html`<label class="field">Name<input name="name" required autofocus /></label><label class="field">Unix account<input name="account" placeholder="that of the site" /><small>that their jobs run as</small></label>`, run: async form => { await put(`users/${part(form.get("name"))}`, form.get("account") ? { account: form.get("account") } : {}); toast("The user was created."); again(); } });
  const grant = user => confirm({ title: `Grant ${user.name} a role`, action: "Grant", body: html`<label class="field">Role<select name="role">${ROLES.map(role => html`<option>${role}</option>`)}</select></label><${QueueSelect} all />`, run: async form => { await put(`users/${part(user.name)}/roles`, { role: form.get("role"), queue: form.get("queue") }); toast("The role was granted."); again(); } });
  const revoke = (user, role) => confirm({ title: "Revoke the role?", danger: true, action: "Revoke", body: html`<p>${user.name} will no longer be ${role.role} of ${role.queue || "the cluster"}. Jobs that run go on.</p>`, run: async () => { await remove(`users/${part(user.name)}/roles`, { role: role.role, queue: role.queue }); toast("The role was revoked."); again(); } });
  const toggle = user => confirm({ title: user.disabled ? `Enable ${user.name}?` : `Disable ${user.name}?`, danger: !user.disabled, action: user.disabled ? "Enable" : "Disable", body: html`<p>${user.disabled ? "They can sign in again." : "They cannot sign in or use their tokens; their waiting jobs do not start."}</p>`, run: async () => { await put(`users/${part(user.name)}`, { disabled: !user.disabled }); again(); } });
  const drop = user => confirm({ title: `Remove ${user.name}?`, danger: true, action: "Remove", body: html`<p>All roles and tokens are removed with the user. Earlier records keep the name.</p>`, run: async () => { await remove(`users/${part(user.name)}`); toast("The user was removed."); again(); } });
  return html`<${ProblemNotice} problem=${problem} /><${Panel} title="Users" flush actions=${may("users.change") && html`<button class="small primary" onClick=${create}>New user…</button>`}><div class="scrolls" tabindex="0"><table><thead><tr><th>User</th><th>Account</th><th>Roles</th><th class="r">Tokens</th><th><span class="hidden-text">Actions</span></th></tr></thead><tbody>${(users || []).map(user => html`<tr key=${user.name}><td><a href=${link("jobs", { user: user.name })}>${user.name}</a>${user.disabled && html` <span class="tag">disabled</span>`}</td><td class="dim">${user.account || "–"}</td><td>${user.roles.map(role => html`<span class="tag">${role.role}${role.queue ? ` of ${role.queue}` : ""}${may("roles.change") && html` <button class="link" aria-label="Revoke ${role.role} of ${user.name}" onClick=${() => revoke(user, role)}>×</button>`}</span> `)}</td><td class="r">${count(user.tokens)}</td><td class="r"><div class="row tight" style=${{ justifyContent: "flex-end", flexWrap: "nowrap" }}>${may("roles.change") && html`<button class="small" onClick=${() => grant(user)}>Grant…</button>`}${may("users.change") && html`<button class="small" onClick=${() => toggle(user)}>${user.disabled ? "Enable" : "Disable"}…</button><button class="small danger" onClick=${() => drop(user)}>Remove…</button>`}</div></td></tr>`)}</tbody></table></div></${Panel}>`;
}

function Tokens() {
  const [tokens, problem, again] = useList("tokens", "tokens");
  const create = () => confirm({ title: "New token", action: "Create", body: html`<label class="field">Name<input name="name" placeholder="ci" autofocus /></label><label class="field">Expires after<select name="days"><option value="1">1 day</option><option value="30" selected>30 days</option><option value="365">1 year</option></select></label><label class="field">Only for these verbs<input name="scope" placeholder="all of your rights" /><small>such as jobs.submit, jobs.read</small></label>`,
    run: async form => { const made = await post("tokens", { name: form.get("name"), expires_in_ms: Number(form.get("days")) * 86400000, scope: form.get("scope").split(",").map(each => each.trim()).filter(Boolean) }); again(); confirm({ title: "The new token", body: html`<p>It is shown only now. Keep it like a password.</p><pre class="mono">${made.token}</pre>` }); } });
  const revoke = token => confirm({ title: token.session_of ? "End the session?" : "Revoke the token?", danger: true, action: token.session_of ? "End it" : "Revoke", body: html`<p>${token.session_of ? "The browser is signed out." : "Programs that use it are refused, and sessions that were signed in with it end."}</p>`, run: async () => { await remove(`tokens/${part(token.id)}`); toast("Done."); again(); } });
  const list = isSession => (tokens || []).filter(token => Boolean(token.session_of) === isSession);
  const Table = ({ items, isSession }) => html`<div class="scrolls" tabindex="0"><table><thead><tr><th>${isSession ? "Browser" : "Name"}</th><th>Id</th><th>${isSession ? "Signed in" : "Issued"}</th><th>Expires</th><th>${isSession ? "With token" : "Scope"}</th><th><span class="hidden-text">Actions</span></th></tr></thead><tbody>${items.map(token => html`<tr key=${token.id}><td>${token.name.replace("session: ", "") || "–"}${token.id === me.value.token && html` <span class="tag">this one</span>`}</td><td class="mono dim">${token.id}</td><td><${Time} ms=${token.issued_ms} /></td><td>${token.expires_ms ? html`<${Time} ms=${token.expires_ms} />` : "never"}</td><td class="dim">${isSession ? html`<span class="mono">${token.session_of}</span>` : token.scope.join(", ") || "all rights"}</td><td class="r"><button class="small danger" onClick=${() => revoke(token)}>${isSession ? "End…" : "Revoke…"}</button></td></tr>`)}${!items.length && html`<tr><td colspan="6" class="dim">None.</td></tr>`}</tbody></table></div>`;
  return html`<div class="stack"><${ProblemNotice} problem=${problem} /><${Panel} title="Your sessions" flush><${Table} items=${list(true)} isSession /></${Panel}><${Panel} title="Your tokens" flush actions=${html`<button class="small primary" onClick=${create}>New token…</button>`}><${Table} items=${list(false)} /></${Panel}></div>`;
}

function Secrets() {
  const [secrets, problem, again] = useList("secrets", "secrets");
  const set = () => confirm({ title: "Set a secret", action: "Set", body: html`<label class="field">Name<input name="name" required placeholder="WANDB_API_KEY" autofocus /></label><${QueueSelect} all=${may("users.change")} /><label class="field">Value<input name="value" type="password" required autocomplete="off" /><small>Only jobs that name it get it. It is never shown again.</small></label>`, run: async form => { await put(`secrets/${part(form.get("name"))}`, { value: form.get("value") }, { queue: form.get("queue") }); toast("The secret was set."); again(); } });
  const drop = secret => confirm({ title: `Remove ${secret.name}?`, danger: true, action: "Remove", body: html`<p>Jobs of ${secret.queue || "the cluster"} that name it no longer start.</p>`, run: async () => { await remove(`secrets/${part(secret.name)}`, { queue: secret.queue }); again(); } });
  return html`<${ProblemNotice} problem=${problem} /><${Panel} title="Secrets" flush actions=${may("secrets.change") && html`<button class="small primary" onClick=${set}>Set a secret…</button>`}>${secrets && !secrets.length ? html`<${Empty} title="No secrets">A secret is a value, such as a key, that jobs get without it being in their files.</${Empty}>` : html`<div class="scrolls" tabindex="0"><table><thead><tr><th>Name</th><th>Queue</th><th>Set</th><th><span class="hidden-text">Actions</span></th></tr></thead><tbody>${(secrets || []).map(secret => html`<tr><td class="mono">${secret.name}</td><td>${secret.queue || "the whole cluster"}</td><td><${Time} ms=${secret.set_ms} /></td><td class="r">${may("secrets.change") && html`<button class="small danger" onClick=${() => drop(secret)}>Remove…</button>`}</td></tr>`)}</tbody></table></div>`}</${Panel}>`;
}

export default function Access() {
  const tabs = [["users", "Users and roles", "users.read"], ["tokens", "Tokens and sessions", "tokens.read"], ["secrets", "Secrets", "secrets.read"]].filter(([, , verb]) => may(verb)), at = path.value[1] || tabs[0]?.[0];
  return html`<${Head} title="Access" note="Signed in as ${me.value.user}" /><${Tabs} label="Parts" at=${at} tabs=${tabs.map(([key, text]) => [key, text, link(`access/${key}`)])} />${at === "tokens" ? html`<${Tokens} />` : at === "secrets" ? html`<${Secrets} />` : html`<${Users} />`}`;
}
