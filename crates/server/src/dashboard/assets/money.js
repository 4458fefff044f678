// Money: budgets, what was spent of them, and when they run out.
import { html, useState } from "./vendor/preact.js";
import { clock, duration, last, mean } from "./api.js";
import { Chart, Legend } from "./chart.js";
import { Badge, Bar, Panel, Problem, Table, Tabs, Tile, useLoaded, useRange } from "./parts.js";
import { CallerLink } from "./limits.js";

const dollars = (value) => (value === null || value === undefined ? "–" : `$${Number(value).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: value < 0.1 ? 6 : 2 })}`);

/** Returns the seconds until a budget is used up at the pace since it was first seen, if that is before anything of it frees up. */
function runsOut(usage, now) {
  const [used, limit] = [Number(usage.used), Number(usage.of)];
  if (used >= limit) return 0;
  const elapsed = (new Date(usage.at) - new Date(usage.firstAt)) / 1000;
  const spent = used - Number(usage.firstUsed);
  if (elapsed < 10 || spent <= 0) return null;
  const left = ((limit - used) * elapsed) / spent - (now - new Date(usage.at)) / 1000;
  return left < (new Date(usage.reset) - now) / 1000 ? Math.max(1, left) : null;
}

export function MoneyPage() {
  const [limits, error] = useLoaded("/v1/dashboard/limits", 3);
  const [data, choice] = useRange();
  const [by, setBy] = useState("any");
  const now = limits ? new Date(limits.now).getTime() : Date.now();
  const budgets = (limits?.budgets ?? []).filter((usage) => by === "any" || usage.dimensions.some(([name]) => name === by));
  budgets.sort((one, other) => Number(other.used) - Number(one.used));
  const ending = (limits?.budgets ?? []).filter((usage) => runsOut(usage, now) !== null);
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
    <${Problem} text=${error} />
    <div class="grid">
      <div class="tiles">
        <${Tile} label="Reserved" value=${dollars(last(reserved))} unit="/s" note=${`mean of 5 minutes: ${dollars(mean(reserved, 300 / data.step))}`} />
        <${Tile} label="Settled" value=${dollars(last(settled))} unit="/s" note=${`mean of 5 minutes: ${dollars(mean(settled, 300 / data.step))}`} />
        <${Tile} label="Budgets in use" value=${(limits?.budgets ?? []).length} />
        <${Tile} label="Run out at this pace" value=${ending.length} color=${ending.length ? "amber" : ""} note="before they free up" />
      </div>
      <${Panel} title="Dollars per second" note="reserved when work starts, settled when its cost is known" extra=${html`<${Legend} lines=${lines} />`}>
        <div class="body"><${Chart} label="Dollars per second" lines=${lines} until=${data.until} step=${data.step} format=${dollars} height=${160} /></div>
      <//>
      <${Panel} title="Budgets" note="largest spend first, as the last decisions saw it" extra=${html`<${Tabs} label="Dimension" value=${by} choose=${setBy} options=${[["any", "All"], ["userId", "Users"], ["tenantId", "Tenants"], ["modelId", "Models"]]} />`}>
        <${Table} label="Budgets" columns=${[["who", "key"], ["rule"], ["share"], ["spent", "num"], ["runs out"], ["seen"]]} rows=${rows} empty="no limit on money has been used" />
      <//>
    </div>`;
}
