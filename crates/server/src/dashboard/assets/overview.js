// Overview: decisions, latency, rules, the store, and what is wrong right now.
import { html } from "./vendor/preact.js";
import { add, ago, bytes, last, mean, metric, ms, number, percent, whole } from "./api.js";
import { Chart, Legend, Sparkline } from "./chart.js";
import { Badge, Panel, Problem, Table, Tile, useLoaded, useRange } from "./parts.js";
import { Hosts } from "./nodes.js";

function Problems({ view }) {
  if (!view.summary) return null;
  const { problems, host } = view.summary;
  if (problems.length === 0) {
    return html`<ul class="problems"><li class="problem good"><span class="dot"></span><strong>No problems</strong><span class="soft">on ${view.isOwn ? "this node" : host} right now</span></li></ul>`;
  }
  return html`<ul class="problems">
    ${problems.map(
      (problem) => html`<li class=${`problem ${problem.severity}`}>
        <${Badge} color=${problem.severity === "critical" ? "red" : "amber"}>${problem.severity}<//>
        <strong>${problem.title}</strong><span class="grow">${problem.remedy}</span> <${Hosts} view=${view} names=${problem.nodes} />
        ${problem.page !== "overview" && html`<a href=${`#/${problem.page}`}>${`Open ${problem.page}`}</a>`}
      </li>`,
    )}
  </ul>`;
}

function Rules({ series, step }) {
  const over = (values, seconds) => mean(values, seconds, step) ?? 0;
  const names = metric(series, "rule").filter(([[, kind]]) => kind === "allowed");
  const of = (name, kind) => series[JSON.stringify(["rule", name, kind])] ?? [];
  const rows = names
    .map(([[name], allowed]) => ({ name, allowed, denied: of(name, "denied"), shadow: of(name, "shadow") }))
    .sort((one, other) => over(other.denied, 300) - over(one.denied, 300) || over(other.allowed, 300) - over(one.allowed, 300))
    .slice(0, 50)
    .map(({ name, allowed, denied, shadow }) => {
      const [passed, blocked] = [over(allowed, 60), over(denied, 60)];
      return [
        html`<a href="#/limits">${name}</a>${shadow.length > 0 && html`<div><${Badge} color="amber">shadow: ${number(over(shadow, 60))}/s would be denied<//></div>`}`,
        number(passed),
        html`<span class=${blocked > 0 ? "red" : ""}>${number(blocked)}</span>`,
        percent(blocked, passed + blocked),
        html`<${Sparkline} values=${allowed} label=${`${name} allowed`} />`,
        html`<${Sparkline} values=${denied} color="denied" label=${`${name} denied`} />`,
      ];
    });
  const columns = [["rule"], ["allowed/s", "num"], ["denied/s", "num"], ["denied", "num"], ["allowed"], ["denied"]];
  return html`<${Table} label="Decisions by rule" columns=${columns} rows=${rows} empty="no decisions yet" />`;
}

/** All nodes that share the store, and their sum. */
function Nodes({ view }) {
  const { nodes, own } = view;
  if (!view.several) return null;
  const sum = (name) => nodes.reduce((total, node) => total + (node.rates[name] ?? 0), 0);
  const cells = (name, rates, totals, problems, started) => [
    name,
    number(rates("allowed")),
    html`<span class=${rates("denied") > 0 ? "red" : ""}>${number(rates("denied"))}</span>`,
    percent(rates("denied"), rates("allowed") + rates("denied")),
    whole(totals),
    problems,
    started,
  ];
  const rows = [
    cells(html`<b>All ${nodes.length} nodes</b>`, sum, nodes.reduce((total, node) => total + node.decisions.allowed + node.decisions.denied, 0), nodes.reduce((total, node) => total + node.problems, 0), ""),
    ...nodes.map((node) =>
      cells(
        html`${node.host} <span class="soft mono">${node.id.slice(0, 8)}</span> ${node.id === own && html`<${Badge}>this node<//>`}`,
        (name) => node.rates[name] ?? 0,
        node.decisions.allowed + node.decisions.denied,
        node.problems ? html`<button type="button" class="link amber" onClick=${() => view.choose(node.id)}>${node.problems}<span class="hidden"> problems: show this node</span></button>` : "0",
        ago(node.started).replace(" ago", ""),
      ),
    ),
  ];
  const columns = [["node"], ["allowed/s", "num"], ["denied/s", "num"], ["denied", "num"], ["decisions", "num"], ["problems", "num"], ["up for", "num"]];
  return html`<${Panel} title="Nodes" note="that share this Redis, mean of 5 seconds"><${Table} label="Nodes" columns=${columns} rows=${rows} /><//>`;
}

function Store({ overview, series, step }) {
  const store = overview?.store ?? {};
  const calls = add(metric(series, "rate_limiter_redis_calls_total").map(([, values]) => values));
  const errors = add(metric(series, "rate_limiter_redis_errors_total").map(([, values]) => values));
  const took = metric(series, "rate_limiter_redis_latency_seconds");
  const of = (name, server) => metric(series, name).find(([[label]]) => label === server)?.[1] ?? [];
  const latency = took.length ? Math.max(...took.map(([, values]) => last(values))) * 1000 : null;
  const rows =
    store.kind === "redis"
      ? [
          ["Redis", store.up ? html`<${Badge} color="green">reachable<//>` : html`<${Badge} color="red">not reachable<//>`],
          ["Nodes on this Redis", whole(store.nodes)],
          ["Calls per second", html`${number(last(calls))} <${Sparkline} values=${calls} color="info" label="Calls to Redis" />`],
          ["Failed calls per second", html`<span class=${last(errors) > 0 ? "red" : ""}>${number(last(errors))}</span>`],
          ["Mean time of a call", ms(latency)],
          ["Denials from the cache", whole(store.cachedDenials)],
          ["Attempts being rolled back", whole(store.takingBack)],
          ...(store.servers ?? []).flatMap((server) => [
            [html`Memory, <span class="wrap">${server.server}</span>`, html`<span class=${server.memoryMax && server.memory > 0.8 * server.memoryMax ? "red" : ""}>${bytes(server.memory)}</span>${server.memoryMax ? html` <span class="soft">of ${bytes(server.memoryMax)}</span>` : ""}<div><${Sparkline} values=${of("sluicegate_redis_memory_bytes", server.server)} color="violet" label=${`Memory of ${server.server}`} /></div>`],
            [html`CPU, <span class="wrap">${server.server}</span>`, html`${percent(mean(of("sluicegate_redis_cpu_seconds_total", server.server), 5, step) ?? 0, 1)} <span class="soft">of a core</span><div><${Sparkline} values=${of("sluicegate_redis_cpu_seconds_total", server.server)} color="warn" label=${`CPU of ${server.server}`} /></div>`],
            [html`Operations per second, <span class="wrap">${server.server}</span>`, html`${number(server.operations)}<div><${Sparkline} values=${of("sluicegate_redis_operations_per_second", server.server)} color="info" label=${`Operations of ${server.server}`} /></div>`],
          ]),
        ]
      : [
          ["Memory", html`<${Badge} color="green">in this process<//>`],
          ["Counters", whole(store.keys)],
          ["Reservations and remembered ids", whole(store.records)],
        ];
  const open = Object.entries(overview?.connections ?? {}).map(([name, count]) => [`Connections: ${name}`, whole(count)]);
  return html`<${Table} label="Store" columns=${[["part"], ["state", "num"]]} rows=${[...rows, ...open]} />`;
}

export function Overview({ view }) {
  const [overview, error] = useLoaded("/v1/dashboard/overview");
  const { live } = view;
  const [data, choice] = useRange(view);
  const { allowed = [], denied = [], errors = [], p50 = [], p95 = [], p99 = [] } = data.series;
  const now = live.series;
  const [passed, blocked] = [last(now.allowed), last(now.denied)];
  const [passed5, blocked5] = [mean(now.allowed, 300, live.step) ?? 0, mean(now.denied, 300, live.step) ?? 0];
  const rates = [
    { name: "allowed", color: "allowed", values: allowed, fill: true },
    { name: "denied", color: "denied", values: denied, fill: true },
    ...(errors.some((value) => value > 0) ? [{ name: "failed", color: "warn", values: errors }] : []),
  ];
  const latencies = [
    { name: "p50", color: "allowed", values: p50 },
    { name: "p95", color: "info", values: p95 },
    { name: "p99", color: "violet", values: p99 },
  ];
  const totals = view.summary?.decisions ?? {};
  return html`<div class="head"><h1>Overview</h1><span class="grow"></span>${choice}</div>
    <div class="grid">
      <div><${Problem} text=${error ?? view.error} /><${Problems} view=${view} /></div>
      <div class="tiles">
        <${Tile} label="Allowed" value=${number(passed)} unit="/s" note=${`${whole(totals.allowed)} since the start`} />
        <${Tile} label="Denied" value=${number(blocked)} unit="/s" color=${blocked > 0 ? "red" : ""} note=${`${whole(totals.denied)} since the start${totals.errors ? `, ${whole(totals.errors)} failed` : ""}`} />
        <${Tile} label="Denied share" value=${percent(blocked5, passed5 + blocked5)} color=${blocked5 / (passed5 + blocked5) > 0.05 ? "red" : ""} note="last 5 minutes" />
        <${Tile} label="p50 of decisions" value=${ms(mean(now.p50, 60, live.step))} note="last minute" />
        <${Tile} label="p95" value=${ms(mean(now.p95, 60, live.step))} note="last minute" />
        <${Tile} label="p99" value=${ms(mean(now.p99, 60, live.step))} note="last minute" />
        <${Tile} label=${view.isOwn ? "Configuration" : "Configuration of this node"} value=${`version ${overview?.configVersion ?? "–"}`} note=${overview ? `node up for ${ago(overview.node.started).replace(" ago", "")}` : ""} />
      </div>
      <${Nodes} view=${view} />
      <${Panel} kind="two-thirds" title="Decisions per second" extra=${html`<${Legend} lines=${rates} />`}>
        <div class="body"><${Chart} label="Decisions per second" lines=${rates} until=${data.until} step=${data.step} height=${220} /></div>
      <//>
      <${Panel} kind="third" title="Latency of decisions" extra=${html`<${Legend} lines=${latencies} />`}>
        <div class="body"><${Chart} label="Latency of decisions" lines=${latencies} until=${data.until} step=${data.step} height=${220} format=${ms} /></div>
      <//>
      <${Panel} kind="two-thirds" title="Rules" note="mean of the last minute"><${Rules} series=${now} step=${live.step} /><//>
      <${Panel} kind="third" title="Store"><${Store} overview=${overview} series=${now} step=${live.step} /><//>
    </div>`;
}
