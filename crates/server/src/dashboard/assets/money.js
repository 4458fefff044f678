// Money: budgets, what was spent of them, when they run out, and reservations that nobody settled.
import { html, useState } from "./vendor/preact.js";
import { clock, duration, last, mean, post, whole } from "./api.js";
import { Chart, Legend } from "./chart.js";
import { ActionForm, Badge, Bar, Dialog, Dimensions, Panel, Problem, Table, Tabs, Tile, useLoaded, useRange } from "./parts.js";
import { CallerLink } from "./limits.js";

const dollars = (value) => (value === null || value === undefined ? "–" : `$${Number(value).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: value < 0.1 ? 6 : 2 })}`);

/** Returns the seconds until a budget is used up at its pace; null if a part of it frees up before. */
function runsOut(usage, now) {
  if (usage.usedUpAt === null) return null;
  return usage.share >= 1 ? 0 : Math.max(1, (new Date(usage.usedUpAt) - now) / 1000);
}

const estimate = ({ amount, unit }) => (unit === "USD" ? dollars(amount) : `${whole(amount)} ${unit.replaceAll("_", " ")}`);

/** The dialog that settles a reservation, or cancels it. */
function EndReservation({ kind, one, close, done }) {
  const [usd, setUsd] = useState("");
  const [input, setInput] = useState("");
  const [output, setOutput] = useState("");
  const settle = kind === "settle";
  const act = async (reason) => {
    const cost = { ...(usd.trim() && { usd: usd.trim() }), ...(input.trim() && { inputTokens: Number(input) }), ...(output.trim() && { outputTokens: Number(output) }) };
    await post(`/v1/reservations/${encodeURIComponent(one.id)}/${kind}`, settle ? { cost, reason } : { reason });
    return settle ? "Reservation settled" : "Reservation cancelled: its estimate is given back";
  };
  const field = (id, label, value, set, mode) => html`<div class="field"><label for=${id}>${label}</label><input id=${id} inputmode=${mode} autocomplete="off" value=${value} onInput=${(event) => set(event.target.value)} /></div>`;
  return html`<${Dialog} title=${settle ? "Settle the reservation" : "Cancel the reservation"} close=${close}>
    <${ActionForm} action=${act} label=${settle ? "Settle" : "Give it back"} danger=${!settle} close=${close} done=${done}>
      <p class="soft"><${Dimensions} pairs=${one.caller} /></p>
      <p>Estimated: ${one.charges.map((charge) => html`<span class="chip"><b>${charge.rule} </b>${estimate(charge)}</span>`)}</p>
      ${settle
        ? html`<p class="soft">What the work has really cost. What is left empty stays as estimated.</p>
            ${field("usd", "Dollars, such as 0.12", usd, setUsd, "decimal")} ${field("input-tokens", "Input tokens", input, setInput, "numeric")} ${field("output-tokens", "Output tokens", output, setOutput, "numeric")}`
        : html`<p class="soft">The work did not run, or cost nothing: all that it has charged is given back.</p>`}
    <//>
  <//>`;
}

/** Reservations whose hold is over: their callers have crashed, or forgot to settle them. */
function Unsettled({ admin }) {
  const [loaded, error, reload] = useLoaded("/v1/reservations");
  const [ending, setEnding] = useState(null);
  const now = loaded ? new Date(loaded.now).getTime() : 0;
  const rows = (loaded?.reservations ?? []).slice(0, 100).map((one) => [
    html`<span class="nowrap" title=${one.at}>${duration((now - new Date(one.at)) / 1000)}</span>`,
    html`<${CallerLink} pairs=${one.caller} />`,
    one.charges.map((charge) => html`<div>${charge.rule}</div>`),
    one.charges.map((charge) => html`<div class="nowrap">${estimate(charge)}</div>`),
    one.node,
    html`<span class="nowrap" title=${one.ends}>in ${duration((new Date(one.ends) - now) / 1000)}</span>`,
    ...(admin
      ? [html`<div class="row nowrap"><button type="button" onClick=${() => setEnding({ kind: "settle", one })}>Settle</button> <button type="button" class="danger" onClick=${() => setEnding({ kind: "cancel", one })}>Give back</button></div>`]
      : []),
  ]);
  const columns = [["age"], ["caller", "key"], ["rule"], ["reserved", "num"], ["node"], ["freed by itself"], ...(admin ? [["actions"]] : [])];
  const note = `their hold is over; open reservations: ${whole(loaded?.open)}${loaded?.unlisted ? `, not listed because there are too many: ${whole(loaded.unlisted)}` : ""}`;
  return html`<${Panel} title="Reservations that nobody settled" note=${note}>
    ${error && html`<div class="body"><${Problem} text=${error} /></div>`}
    <${Table} label="Reservations that nobody settled" columns=${columns} rows=${rows} empty="every reservation was settled in time" />
    ${(loaded?.count ?? 0) > rows.length && html`<div class="body soft small">the oldest ${whole(rows.length)} of ${whole(loaded.count)}</div>`}
    ${ending && html`<${EndReservation} kind=${ending.kind} one=${ending.one} close=${() => setEnding(null)} done=${reload} />`}
  <//>`;
}

export function MoneyPage({ admin, view }) {
  const [data, choice] = useRange(view);
  const [by, setBy] = useState("any");
  const { now } = view;
  const all = view.summary?.budgets ?? [];
  const budgets = all.filter((usage) => by === "any" || usage.dimensions.some(([name]) => name === by));
  const ending = all.filter((usage) => runsOut(usage, now) !== null);
  const rows = budgets.slice(0, 50).map((usage) => {
    const left = runsOut(usage, now);
    return [
      html`<${CallerLink} pairs=${usage.dimensions} />`,
      html`${usage.rule}<br /><span class="soft small">${usage.limit}</span>`,
      html`<${Bar} share=${usage.share} />`,
      html`${dollars(usage.used)} <span class="soft">/ ${dollars(usage.of)}</span>`,
      left === 0 ? html`<${Badge} color="red">used up<//>` : left === null ? html`<span class="soft">not at this pace</span>` : html`<${Badge} color="amber">in ${duration(left)}<//>`,
      html`<span class="soft">${clock(usage.at)}</span>`,
    ];
  });
  const { reserved = [], settled = [] } = data.series;
  const lines = [
    { name: "reserved", color: "info", values: reserved, fill: true },
    { name: "settled", color: "allowed", values: settled },
  ];
  return html`<div class="head"><h1>Money</h1><span class="grow"></span>${choice}</div>
    <${Problem} text=${view.error} />
    <div class="grid">
      <div class="tiles">
        <${Tile} label="Reserved" value=${dollars(last(reserved))} unit="/s" note=${`mean of 5 minutes: ${dollars(mean(reserved, 300, data.step))}`} />
        <${Tile} label="Settled" value=${dollars(last(settled))} unit="/s" note=${`mean of 5 minutes: ${dollars(mean(settled, 300, data.step))}`} />
        <${Tile} label="Budgets in use" value=${all.length} />
        <${Tile} label="Run out at this pace" value=${ending.length} color=${ending.length ? "amber" : ""} note="before they free up" />
      </div>
      <${Panel} title="Dollars per second" note="reserved when work starts, settled when its cost is known" extra=${html`<${Legend} lines=${lines} />`}>
        <div class="body"><${Chart} label="Dollars per second" lines=${lines} until=${data.until} step=${data.step} format=${dollars} height=${160} /></div>
      <//>
      <${Unsettled} admin=${admin} />
      <${Panel} title="Budgets" note="largest spend first, as the last decisions saw it" extra=${html`<${Tabs} label="Dimension" value=${by} choose=${setBy} options=${[["any", "All"], ["userId", "Users"], ["tenantId", "Tenants"], ["modelId", "Models"], ["apiKey", "API keys"]]} />`}>
        <${Table} label="Budgets" columns=${[["who", "key"], ["rule"], ["share"], ["spent", "num"], ["runs out"], ["seen"]]} rows=${rows} empty="no limit on money has been used" />
      <//>
    </div>`;
}
