// Activity: the live tail of decisions, and reloads of the configuration.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { clock, get, ms, number, on, post } from "./api.js";
import { Badge, Dimensions, Empty, Panel, Problem, Tabs, toast, useLoaded } from "./parts.js";

/** Number of decisions that the page keeps. */
const KEPT = 500;

function useTail(paused) {
  const [decisions, setDecisions] = useState([]);
  const held = useRef(paused);
  held.current = paused;
  useEffect(() => {
    get("/v1/dashboard/activity").then(
      (loaded) => setDecisions((now) => merge(loaded.decisions, now)),
      () => {},
    );
    return on("tail", (news) => {
      if (!held.current && news.decisions.length) setDecisions((now) => merge(now, news.decisions));
    });
  }, []);
  return decisions;
}

/** Joins two lists of decisions, each once, and keeps the newest. */
function merge(older, newer) {
  const all = new Map([...older, ...newer].map((one) => [one.n, one]));
  return [...all.values()].sort((one, other) => one.n - other.n).slice(-KEPT);
}

function Decision({ one }) {
  const used = one.scopes.map((scope) => `${scope.rule} ${scope.used}/${scope.of}`).join(" · ");
  return html`<tr>
    <td>${clock(one.at)}</td>
    <td>${one.allowed ? html`<${Badge} color="green">allowed<//>` : html`<${Badge} color="red">denied<//>`}</td>
    <td>${one.reason ?? ""}</td>
    <td class="wide"><${Dimensions} pairs=${one.dimensions} /></td>
    <td class="wide soft">${used}</td>
    <td class="num">${ms(one.latencyUs / 1000)}</td>
  </tr>`;
}

function Tail({ sampled }) {
  const [paused, setPaused] = useState(false);
  const [show, setShow] = useState("all");
  const [text, setText] = useState("");
  const decisions = useTail(paused);
  const wanted = text.trim().toLowerCase();
  const matches = (one) => {
    if (show !== "all" && one.allowed !== (show === "allowed")) return false;
    if (!wanted) return true;
    const words = [one.reason, one.rule, one.id, ...one.dimensions.flatMap(([name, value]) => [`${name}=${value}`]), ...one.scopes.map((scope) => scope.rule)];
    return words.some((word) => word && String(word).toLowerCase().includes(wanted));
  };
  const found = decisions.filter(matches).reverse().slice(0, 200);
  const share = sampled ? Math.min(sampled.admissions, sampled.denials) : 1;
  const note = `up to 50 admissions and 50 denials per second${share < 1 ? `, from a sample of ${number(100 * share)} %` : ""}`;
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
          <tbody>${found.map((one) => html`<${Decision} key=${one.n} one=${one} />`)}</tbody>
        </table></div>`}
  <//>`;
}

function Reloads({ reloads, admin, changed }) {
  const reload = async () => {
    try {
      const answer = await post("/reload");
      toast(`Reloaded: ${answer.changes.length} changes`);
    } catch {
      toast("The configuration was rejected");
    }
    changed();
  };
  return html`<${Panel} title="Reloads" note="the newest first" extra=${admin && html`<button type="button" onClick=${reload}>Reload now</button>`}>
    ${(reloads ?? []).length === 0
      ? html`<${Empty}>the configuration has not been reloaded since the start<//>`
      : html`<div class="body form">${reloads.map(
          (one) => html`<div>
            <div class="row">${one.error ? html`<${Badge} color="red">rejected<//>` : html`<${Badge} color="green">version ${one.version}<//>`}<span class="soft">${clock(one.at)}</span>${!one.error && one.changes.length === 0 && html`<span class="soft">no rule changed</span>`}</div>
            ${one.error && html`<pre class="error">${one.error}</pre>`}
            ${(one.changes ?? []).map((text) => html`<div class=${text.endsWith("tighter") ? "amber" : ""}>${text}</div>`)}
          </div>`,
        )}</div>`}
  <//>`;
}

export function Activity({ admin }) {
  const [loaded, error, changed] = useLoaded("/v1/dashboard/activity", 5);
  return html`<div class="head"><h1>Activity</h1></div>
    <${Problem} text=${error} />
    <div class="grid">
      <${Tail} sampled=${loaded?.sampled} />
      <${Reloads} reloads=${loaded?.reloads} admin=${admin} changed=${changed} />
    </div>`;
}
