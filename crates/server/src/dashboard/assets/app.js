// The frame of all pages: navigation, login and theme.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import { connect, disconnect, get, on, post } from "./api.js";
import { Problem, Toast, useLive } from "./parts.js";
import { NodeChoice, useView } from "./nodes.js";
import { Overview } from "./overview.js";
import { Limits } from "./limits.js";
import { CallerPage } from "./caller.js";
import { MoneyPage } from "./money.js";
import { Gateways } from "./gateways.js";
import { Queues } from "./queues.js";
import { Activity } from "./activity.js";
import { Audit } from "./audit.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["limits", "Limits", Limits],
  ["money", "Money", MoneyPage],
  ["gateways", "Gateways", Gateways],
  ["queues", "Queues", Queues],
  ["activity", "Activity", Activity],
  ["audit", "Audit", Audit],
  ["caller", "Caller", CallerPage],
];

/** Returns the page and the parameters in the address. */
function place() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const page = PAGES.find(([key]) => key === name) ?? PAGES[0];
  return { page, parameters: new URLSearchParams(query ?? "") };
}

function usePlace() {
  const [at, setAt] = useState(place());
  useEffect(() => {
    const changed = () => {
      setAt(place());
      window.scrollTo(0, 0);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    document.title = `${at.page[1]} · Sluicegate`;
  }, [at]);
  return at;
}

function Theme() {
  const dark = () => document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [theme, setTheme] = useState(dark());
  const change = () => {
    const next = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {}
    setTheme(next);
  };
  return html`<button type="button" class="theme" onClick=${change}>${theme === "dark" ? "Light" : "Dark"}<span class="hidden"> theme</span></button>`;
}

function Login({ entered }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await post("/login", { token });
      entered();
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<main class="login">
    <form class="panel form" onSubmit=${submit}>
      <h1 class="brand"><img src="/assets/icon.svg" alt="" />Sluicegate</h1>
      <div class="field">
        <label for="token">Access token</label>
        <input id="token" type="password" autocomplete="current-password" required autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      </div>
      <${Problem} text=${error} />
      <button class="primary">Log in</button>
      <p class="soft small">The token needs the scope <code>read</code>; actions need <code>admin</code>.</p>
    </form>
  </main>`;
}

function Live() {
  const live = useLive();
  return html`<span class="live" title=${live.connected ? "Live data arrives every second" : "No live data"}><span class=${`dot ${live.connected ? "on" : "off"}`}></span>${live.connected ? "live" : "connecting"}</span>`;
}

function Frame({ session, leave, problem }) {
  const { page, parameters } = usePlace();
  const view = useView();
  const problems = view.summary?.problems ?? [];
  const [key, title, Page] = page;
  const has = (scope) => session.scopes.includes(scope);
  useEffect(() => {
    connect(key === "activity");
  }, [key === "activity"]);
  const shown = PAGES.filter(([name]) => name !== "caller");
  return html`<div class="frame">
    <a class="skip" href="#content" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("content").focus();
    }}>Skip to the content</a>
    <header class="side">
      <a class="brand" href="#/overview"><img src="/assets/icon.svg" alt="" />Sluicegate</a>
      <nav aria-label="Pages">
        ${shown.map(
          ([name, text]) => html`<a href=${`#/${name}`} aria-current=${name === key || (key === "caller" && name === "limits") ? "page" : undefined}>${text}
            ${name === "overview" && problems.length > 0 && html`<span class="pill">${problems.length}<span class="hidden"> problems</span></span>`}</a>`,
        )}
      </nav>
      <div class="foot">
        <div class="node"><${Live} /><br />${session.node.host}<br />version ${session.node.version}</div>
        <div class="row">
          <${Theme} />
          ${session.tokens && html`<button type="button" onClick=${leave} title=${`Logged in as ${session.name}`}>Log out</button>`}
        </div>
        <${Problem} text=${problem} />
        ${session.tokens && html`<div class="node">${session.name}${has("admin") ? "" : " · read only"}</div>`}
      </div>
    </header>
    <main id="content" tabindex="-1">
      ${key !== "caller" && html`<${NodeChoice} view=${view} />`}
      <${Page} key=${key} title=${title} parameters=${parameters} admin=${has("admin")} session=${session} view=${view} />
    </main>
    <${Toast} />
  </div>`;
}

function App() {
  const [session, setSession] = useState(undefined);
  const [error, setError] = useState(null);
  const enter = async () => {
    setError(null);
    try {
      const session = await get("/login");
      setSession(session.login ? null : session);
    } catch (problem) {
      setError(problem.message);
    }
  };
  useEffect(() => {
    const stop = on("login", () => {
      disconnect();
      setSession(null);
    });
    enter();
    return stop;
  }, []);
  const leave = async () => {
    // The page is removed first, because the service refuses the updates that it receives after the logout.
    disconnect();
    setError(null);
    setSession(undefined);
    try {
      await post("/logout");
      setSession(null);
    } catch (problem) {
      setError(`not logged out: ${problem.message}`);
      setSession(session);
    }
  };
  if (session) return html`<${Frame} session=${session} leave=${leave} problem=${error} />`;
  if (session === null) return html`<${Login} entered=${enter} />`;
  return html`<main class="login"><${Problem} text=${error} /></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
