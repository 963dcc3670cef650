// Signing in with a token, or with the code of a link that `corral open` made. The code is removed from the address.
import { html, useEffect, useState } from "../lib/ui.js";
import { backFromProvider, get, goToProvider, signIn } from "../lib/api.js";
import { signedIn, signedOutWhy } from "../lib/live.js";
import { params, path } from "../lib/route.js";
import { Notice, ProblemNotice } from "../parts/basics.js";

export default function SignIn() {
  const [problem, setProblem] = useState(null), [busy, setBusy] = useState(false), [providers, setProviders] = useState([]);
  const enter = async (body, how = signIn) => {
    setBusy(true);
    setProblem(null);
    try {
      await how(body);
      if (path.value[0] === "sign-in") location.hash = "#/overview";
      signedIn();
    } catch (found) { setProblem(found); } finally { setBusy(false); }
  };
  useEffect(() => {
    get("sign-in").then(ways => setProviders(ways.providers)).catch(() => {});
    const given = new URLSearchParams(location.search);
    if (given.get("state") || given.get("error")) {
      history.replaceState(null, "", location.pathname);
      if (given.get("code")) enter({ state: given.get("state"), code: given.get("code"), iss: given.get("iss") || "" }, backFromProvider);
      else setProblem({ message: "the sign-in was refused at the provider", hint: "try again, or ask who runs it" });
      return;
    }
    const code = params.value.get("code");
    if (!code) return;
    history.replaceState(null, "", "#/sign-in");
    enter({ code });
  }, []);
  const submit = event => { event.preventDefault(); enter({ token: new FormData(event.target).get("token").trim() }); };
  return html`<main class="signin"><form class="panel" onSubmit=${submit}><div class="row"><img src=${new URL("../icon.svg", import.meta.url).href} width="32" height="32" alt="" /><h1>Corral</h1></div>
    ${signedOutWhy.value && html`<${Notice} level="warning">${signedOutWhy.value}.</${Notice}>`}<${ProblemNotice} problem=${problem} />
    <label class="field">Token<input name="token" type="password" autocomplete="off" spellcheck="false" placeholder="corral_…" required autofocus /></label>
    <button class="primary" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
    ${providers.map(each => html`<button key=${each.name} type="button" disabled=${busy} onClick=${() => enter(each.name, name => goToProvider(name).then(() => new Promise(() => {})))}>Sign in with ${each.name}</button>`)}
    <p class="dim prose">Without a token at hand: run <code>corral open</code> on a machine where you are logged in. It opens this page, signed in.</p></form></main>`;
}
