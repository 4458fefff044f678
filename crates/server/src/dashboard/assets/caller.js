// One caller: its usage in every window, the decision it would get, and actions.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { because, clock, duration, post, whole } from "./api.js";
import { Sparkline } from "./chart.js";
import { ActionForm, Badge, Bar, Dialog, Dimensions, Panel, Problem } from "./parts.js";

/** Number of values of a sparkline. */
const HISTORY = 150;

/** Asks for usage and explanation every second, and remembers the usage since the page was opened. */
function useCaller(dimensions) {
  const [state, setState] = useState({});
  const history = useRef({});
  const [turn, setTurn] = useState(0);
  const body = JSON.stringify({ dimensions });
  useEffect(() => {
    let ended = false;
    let timer = null;
    const load = async () => {
      if (document.hidden) {
        timer = setTimeout(load, 1000);
        return;
      }
      try {
        const [usage, explained] = await Promise.all([post("/v1/usage", { dimensions }), post("/v1/explain", { dimensions })]);
        if (ended) return;
        for (const scope of usage.scopes) {
          const values = (history.current[`${scope.name} ${scope.window}`] ??= []);
          values.push(Number(scope.current));
          if (values.length > HISTORY) values.shift();
        }
        setState({ usage, explained });
      } catch (error) {
        if (!ended) setState({ error: error.message });
      }
      if (!ended) timer = setTimeout(load, 1000);
    };
    history.current = {};
    load();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [body, turn]);
  return [state, history.current, () => setTurn((count) => count + 1)];
}

function Usage({ usage, history }) {
  return html`<div class="body usage">
    ${usage.scopes.map((scope) => {
      const share = Number(scope.current) / (Number(scope.limit) || 1);
      const frees = scope.resetAt && Number(scope.current) > 0 ? `frees up in ${duration((new Date(scope.resetAt) - Date.now()) / 1000)}` : "unused";
      return html`<div class="usage-row">
        <div><b>${scope.name}</b><div class="soft small">${scope.window}</div></div>
        <${Bar} share=${share} label=${`${scope.name} ${scope.window}: ${Math.round(share * 100)} % used`} />
        <div class="num">${whole(scope.current)} <span class="soft">/ ${whole(scope.limit)}</span><div class="soft small">${share > 1 ? `with bookings ahead or debt; ${frees}` : frees}</div></div>
        <${Sparkline} values=${history[`${scope.name} ${scope.window}`] ?? []} max=${Number(scope.limit)} label=${`${scope.name} since the page was opened`} />
      </div>`;
    })}
    ${usage.scopes.length === 0 && html`<p class="soft">No limit counts these dimensions.</p>`}
  </div>`;
}

function Explained({ explained }) {
  const { decision } = explained;
  // Groups of gateways and workers need dimensions that no caller has.
  const groups = explained.groups.filter((group) => group.matched.length || !group.skipped.every((rule) => rule.because.startsWith("@")));
  return html`<div class="body form">
    <p>${decision.allowed ? html`<${Badge} color="green">would be allowed<//>` : html`<${Badge} color="red">would be denied<//> by <b>${decision.scopeHit ?? decision.reason}</b> ${decision.retryAfterMs ? `for ${duration(decision.retryAfterMs / 1000)}` : "(a retry does not help)"}`}</p>
    ${groups.map(
      (group) => html`<div>
        <h3>${group.group}</h3>
        ${group.matched.map(
          (rule) => html`<div>✓ <b>${rule.rule}</b> ${(rule.limits ?? []).map((limit) => html`<span class="chip">${limit}</span>`)} ${rule.unlimited && html`<span class="soft">no limit</span>`} ${rule.shadow && html`<${Badge} color="amber">shadow<//>`} ${rule.override && html`<${Badge} color="amber">override${rule.override.until ? ` until ${clock(rule.override.until)}` : ""}<//>`}</div>`,
        )}
        ${group.matched.length === 0 && html`<div class="soft">no rule matches</div>`}
        ${group.skipped.map((rule) => html`<div class="soft small">– ${rule.rule}: ${rule.because}</div>`)}
      </div>`,
    )}
  </div>`;
}

const ACTIONS = {
  override: { title: "Set another limit", label: "Set the limit" },
  pause: { title: "Pause the caller", label: "Pause" },
  ban: { title: "Ban the caller", label: "Ban", danger: true },
  reset: { title: "Reset usage", label: "Reset", danger: true },
};

function Action({ kind, dimensions, rules, close, done }) {
  const { title, label, danger } = ACTIONS[kind];
  const [rule, setRule] = useState(rules[0] ?? "");
  const [limit, setLimit] = useState("");
  const [lasts, setLasts] = useState("1h");
  const act = async (reason) => {
    if (kind === "reset") {
      const answer = await post(because(`/v1/reset?rule=${encodeURIComponent(rule)}`, reason), { dimensions });
      return `Reset ${answer.reset.length} counters`;
    }
    const body = { rule, when: dimensions, limit: kind === "override" ? limit.split(",").map((text) => text.trim()) : "0", reason };
    if (kind !== "ban") body.expiresIn = lasts;
    await post("/v1/overrides", body);
    return kind === "override" ? `Limit of ${rule} set` : kind === "pause" ? `Paused for ${lasts}` : "Banned";
  };
  return html`<${Dialog} title=${title} close=${close}>
    <${ActionForm} action=${act} label=${label} danger=${danger} close=${close} done=${done}>
      <p class="soft"><${Dimensions} pairs=${Object.entries(dimensions)} /></p>
      <div class="field"><label for="rule">Rule</label><select id="rule" value=${rule} onChange=${(event) => setRule(event.target.value)}>${rules.map((name) => html`<option value=${name}>${name}</option>`)}</select></div>
      ${kind === "override" && html`<div class="field"><label for="limit">Limit, such as 100/min, 5/s, or unlimited</label><input id="limit" required autocomplete="off" value=${limit} onInput=${(event) => setLimit(event.target.value)} /></div>`}
      ${(kind === "override" || kind === "pause") && html`<div class="field"><label for="lasts">For how long, such as 30min, 2h or 1d</label><input id="lasts" required autocomplete="off" value=${lasts} onInput=${(event) => setLasts(event.target.value)} /></div>`}
      ${kind === "ban" && html`<p class="soft">Every request that matches is denied until the ban is removed on the page Limits.</p>`}
      ${kind === "reset" && html`<p class="soft">Deletes what the counters of this rule have counted for the caller. Others may share them.</p>`}
    <//>
  <//>`;
}

export function CallerPage({ parameters, admin }) {
  const dimensions = Object.fromEntries(parameters);
  const [{ usage, explained, error }, history, reload] = useCaller(dimensions);
  const [action, setAction] = useState(null);
  const matched = (explained?.groups ?? []).flatMap((group) => group.matched.map((rule) => rule.rule));
  const rules = [...new Set(matched)];
  return html`<div class="head"><h1>Caller</h1><span class="wrap"><${Dimensions} pairs=${[...parameters]} /></span><span class="grow"></span>
      ${admin && Object.keys(ACTIONS).map((kind) => html`<button type="button" class=${ACTIONS[kind].danger ? "danger" : ""} disabled=${rules.length === 0} onClick=${() => setAction(kind)}>${{ override: "Override", pause: "Pause", ban: "Ban", reset: "Reset" }[kind]}</button>`)}
    </div>
    <p class="small"><a href="#/limits">← Limits</a></p>
    <${Problem} text=${error} />
    <div class="grid">
      <${Panel} kind="two-thirds" title="Usage" note="read every second; reading charges nothing">${usage && html`<${Usage} usage=${usage} history=${history} />`}<//>
      <${Panel} kind="third" title="Explain" note="a request of this caller">${explained && html`<${Explained} explained=${explained} />`}<//>
    </div>
    ${action && html`<${Action} kind=${action} dimensions=${dimensions} rules=${rules} close=${() => setAction(null)} done=${reload} />`}`;
}
