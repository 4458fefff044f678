// Activity: the live tail of decisions, and reloads of the configuration.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { because, clock, get, ms, number, on, post } from "./api.js";
import { ActionForm, Badge, Dialog, Dimensions, Empty, Panel, Problem, Tabs, useLoaded } from "./parts.js";

/** Number of decisions that the page keeps. */
const KEPT = 500;

/** The live tail of this node, or what the summaries of the chosen nodes have of it. */
function useTail(paused, view) {
  const [decisions, setDecisions] = useState([]);
  const held = useRef(paused);
  held.current = paused;
  const newest = view.summary?.tail;
  useEffect(() => {
    if (!view.isOwn && newest && !held.current) setDecisions((now) => merge(now, newest));
  }, [newest, view.isOwn]);
  useEffect(() => {
    setDecisions([]);
    if (!view.isOwn) return undefined;
    get("/v1/dashboard/activity").then(
      (loaded) => setDecisions((now) => merge(loaded.decisions, now)),
      () => {},
    );
    return on("tail", (news) => {
      if (!held.current && news.decisions.length) setDecisions((now) => merge(now, news.decisions));
    });
  }, [view.isOwn, view.chosen]);
  return decisions;
}

/** Joins two lists of decisions, each once, and keeps the newest. */
function merge(older, newer) {
  const all = new Map([...older, ...newer].map((one) => [`${one.nodeId ?? ""} ${one.n}`, one]));
  const order = (one, other) => (one.nodeId === other.nodeId ? one.n - other.n : one.at < other.at ? -1 : 1);
  return [...all.values()].sort(order).slice(-KEPT);
}

function Decision({ one }) {
  const used = one.scopes.map((scope) => `${scope.rule} ${scope.used}/${scope.of}`).join(" · ");
  return html`<tr>
    <td>${clock(one.at)}${one.node && html`<div class="soft small">${one.node}</div>`}</td>
    <td>${one.allowed ? html`<${Badge} color="green">allowed<//>` : html`<${Badge} color="red">denied<//>`}</td>
    <td>${one.reason ?? ""}</td>
    <td class="wide"><${Dimensions} pairs=${one.dimensions} /></td>
    <td class="wide soft">${used}</td>
    <td class="num">${ms(one.latencyUs / 1000)}</td>
  </tr>`;
}

function Tail({ sampled, view }) {
  const [paused, setPaused] = useState(false);
  const [show, setShow] = useState("all");
  const [text, setText] = useState("");
  const decisions = useTail(paused, view);
  const wanted = text.trim().toLowerCase();
  const matches = (one) => {
    if (show !== "all" && one.allowed !== (show === "allowed")) return false;
    if (!wanted) return true;
    const words = [one.reason, one.rule, one.id, ...one.dimensions.flatMap(([name, value]) => [`${name}=${value}`]), ...one.scopes.map((scope) => scope.rule)];
    return words.some((word) => word && String(word).toLowerCase().includes(wanted));
  };
  const found = decisions.filter(matches).reverse().slice(0, 200);
  const share = sampled ? Math.min(sampled.admissions, sampled.denials) : 1;
  const most = view.isOwn ? "up to 50 admissions and 50 denials per second" : "up to 20 decisions of each node every 2 seconds";
  const note = `${most}${share < 1 ? `, from a sample of ${number(100 * share)} %` : ""}`;
  return html`<${Panel} title="Decisions" note=${note}
    extra=${html`<span class="row">
      <input type="search" aria-label="Filter decisions" placeholder="filter: userId=ann, a rule, a reason" size="26" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Tabs} label="Result" value=${show} choose=${setShow} options=${[["all", "All"], ["allowed", "Allowed"], ["denied", "Denied"]]} />
      <button type="button" aria-pressed=${paused ? "true" : "false"} onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>
    </span>`}>
    ${found.length === 0
      ? html`<${Empty}>${decisions.length ? "no decision matches the filter" : "no decisions yet"}<//>`
      : html`<div class="tail scroll" tabindex="0" role="region" aria-label="Decisions"><table>
          <thead><tr><th scope="col">time</th><th scope="col">result</th><th scope="col">reason</th><th scope="col">caller</th><th scope="col">usage after it</th><th scope="col" class="num">took</th></tr></thead>
          <tbody>${found.map((one) => html`<${Decision} key=${`${one.nodeId ?? ""} ${one.n}`} one=${one} />`)}</tbody>
        </table></div>`}
  <//>`;
}

function Reloads({ reloads, admin, changed }) {
  const [asking, setAsking] = useState(false);
  const reload = async (reason) => {
    try {
      const answer = await post(because("/reload", reason));
      return `Reloaded: ${answer.changes.length} changes`;
    } finally {
      changed();
    }
  };
  return html`<${Panel} title="Reloads" note="the newest first" extra=${admin && html`<button type="button" onClick=${() => setAsking(true)}>Reload this node</button>`}>
    ${(reloads ?? []).length === 0
      ? html`<${Empty}>the configuration has not been reloaded since the start<//>`
      : html`<div class="body form">${reloads.map(
          (one) => html`<div>
            <div class="row">${one.error ? html`<${Badge} color="red">rejected<//>` : html`<${Badge} color="green">version ${one.version}<//>`}<span class="soft">${clock(one.at)}</span>${one.node && html`<span class="soft">${one.node}</span>`}${!one.error && one.changes.length === 0 && html`<span class="soft">no rule changed</span>`}</div>
            ${one.error && html`<pre class="error" tabindex="0">${one.error}</pre>`}
            ${(one.changes ?? []).map((text) => html`<div class=${text.endsWith("tighter") ? "amber" : ""}>${text}</div>`)}
          </div>`,
        )}</div>`}
    ${asking &&
    html`<${Dialog} title="Reload the configuration of this node" close=${() => setAsking(false)}>
      <${ActionForm} action=${reload} label="Reload" close=${() => setAsking(false)} done=${changed}>
        <p class="soft">If the file has a mistake, it is rejected as a whole, and the old configuration stays in force.</p>
      <//>
    <//>`}
  <//>`;
}

export function Activity({ admin, view }) {
  const [loaded, error, changed] = useLoaded("/v1/dashboard/activity");
  const { sampled, reloads } = (view.isOwn ? loaded : view.summary) ?? {};
  return html`<div class="head"><h1>Activity</h1></div>
    <${Problem} text=${error} />
    <div class="grid">
      <${Tail} sampled=${sampled} view=${view} />
      <${Reloads} reloads=${reloads} admin=${admin} changed=${changed} />
    </div>`;
}
