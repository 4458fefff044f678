// Gateways: what waits, what the upstream answers, the use of its limit, pauses and announced limits.
import { html } from "./vendor/preact.js";
import { add, clock, duration, last, metric, ms, number, whole } from "./api.js";
import { Chart } from "./chart.js";
import { Badge, Bar, Empty, Panel, Problem, Table, Tile, useLoaded, useRange } from "./parts.js";

const sum = (metrics, name, labels) => metrics.filter((one) => one.name === name && Object.entries(labels).every(([key, value]) => one.labels[key] === value)).reduce((total, one) => total + one.value, 0);

/** Until when the route is closed, and why. */
function Closed({ state, now }) {
  if (!state?.closedUntil) return state?.error ? html`<p class="error">The store did not answer: ${state.error}</p>` : null;
  const left = (new Date(state.closedUntil) - now) / 1000;
  return html`<ul class="problems"><li class="problem warning"><${Badge} color="amber">closed<//>
    <strong>until ${clock(state.closedUntil)} (${duration(left)} left)</strong>
    <span class="grow">on all nodes: ${state.reason ? `the upstream answered ${state.reason}` : "the reason is not known any more"}${state.learnedBy ? ` (to ${state.learnedBy})` : ""}</span></li></ul>`;
}

/** The limits that the upstream has announced in its answers. */
function Announced({ state }) {
  const { at, windows } = state?.announced ?? { windows: [] };
  if (windows.length === 0) return null;
  const rows = windows.map((one) => [
    one.name,
    one.limit === null ? "–" : whole(one.limit),
    one.remaining === null ? "–" : whole(one.remaining),
    one.limit && one.remaining !== null ? html`<${Bar} share=${1 - one.remaining / one.limit} />` : "",
    one.resetSeconds === null ? "–" : duration(one.resetSeconds),
  ]);
  return html`<div><h3>Limits that the upstream announces <span class="soft small">as of ${clock(at)}, to this node</span></h3>
    <${Table} label="Announced limits" columns=${[["window"], ["limit", "num"], ["left", "num"], ["used"], ["reset after", "num"]]} rows=${rows} /></div>`;
}

function Route({ gateway, route, metrics, data, rule, state, now }) {
  const of = (name) => metric(data.series, name).filter(([[g, r]]) => g === gateway && r === route);
  const answers = of("sluicegate_gateway_upstream_answers_total");
  const upstream = add(answers.map(([, values]) => values));
  const waiting = of("sluicegate_gateway_queue_depth").map(([, values]) => values)[0] ?? [];
  const oldest = of("sluicegate_gateway_queue_oldest_seconds").map(([, values]) => values)[0] ?? [];
  const labels = { gateway, route };
  const waits = metrics.find((one) => one.name === "sluicegate_gateway_wait_seconds" && one.labels.gateway === gateway && one.labels.route === route);
  const took = metrics.find((one) => one.name === "sluicegate_gateway_upstream_seconds" && one.labels.gateway === gateway && one.labels.route === route);
  const contract = rule?.perSecond ?? undefined;
  const lines = [{ name: "sent to the upstream", color: "allowed", values: upstream, fill: true }];
  const queue = [{ name: "waiting", color: "info", values: waiting, fill: true }];
  const statuses = (name, label) => metrics.filter((one) => one.name === name && one.labels.gateway === gateway && one.labels.route === route && one.value > 0).map((one) => [one.labels[label], one.value]);
  const shown = (pairs) => (pairs.length ? pairs.sort().map(([status, count]) => html`<span class="chip"><b>${status} </b>${whole(count)}</span>`) : html`<span class="soft">none</span>`);
  const pauses = sum(metrics, "sluicegate_gateway_pauses_total", labels);
  return html`<${Panel} title=${`${gateway} / ${route}`} note=${rule?.limits?.length ? `limit ${rule.limits.join(", ")}` : "no limit"} extra=${pauses > 0 && html`<${Badge} color="amber">${whole(pauses)} ${pauses === 1 ? "pause" : "pauses"} asked for by the upstream<//>`}>
    <div class="body grid">
      <${Closed} state=${state} now=${now} />
      <div class="tiles">
        <${Tile} label="Waiting" value=${whole(last(waiting))} color=${last(waiting) > 100 ? "red" : ""} />
        <${Tile} label="Oldest wait" value=${duration(last(oldest))} />
        <${Tile} label="Sent" value=${number(last(upstream))} unit="/s" note=${contract ? `of ${number(contract)} per second` : ""} />
        <${Tile} label="Mean wait" value=${waits?.count ? ms((1000 * waits.value) / waits.count) : "–"} note="of all that got a turn" />
        <${Tile} label="Mean time of the upstream" value=${took?.count ? ms((1000 * took.value) / took.count) : "–"} />
      </div>
      <div class="half"><h3>Requests per second, and the limit</h3><${Chart} label="Requests to the upstream per second" lines=${lines} until=${data.until} step=${data.step} height=${150} max=${contract} /></div>
      <div class="half"><h3>Waiting requests</h3><${Chart} label="Waiting requests" lines=${queue} until=${data.until} step=${data.step} height=${150} /></div>
      <${Table} label="Answers" columns=${[["answers since the start"], ["by status"]]} rows=${[
        ["of the upstream, by status", shown(statuses("sluicegate_gateway_upstream_answers_total", "status"))],
        ["to callers, by status", shown(statuses("sluicegate_gateway_requests_total", "status"))],
        ["failures of the upstream", shown(statuses("sluicegate_gateway_upstream_errors_total", "code"))],
      ]} />
      <${Announced} state=${state} />
    </div>
  <//>`;
}

/** Returns the state of a route that only other nodes serve: the pause that its upstream asked for last. */
function pausedUntil(pauses, gateway, route, now) {
  const found = pauses.filter((one) => one.gateway === gateway && one.route === route && new Date(one.until) > now);
  found.sort((one, other) => new Date(other.until) - new Date(one.until));
  return found[0] && { closedUntil: found[0].until, reason: found[0].reason, learnedBy: found[0].node };
}

export function Gateways({ view }) {
  const [loaded, error] = useLoaded(view.isOwn ? "/v1/dashboard/metrics?names=sluicegate_gateway_" : null);
  const [limits] = useLoaded("/v1/dashboard/limits", 10);
  const [states] = useLoaded("/v1/dashboard/gateways");
  const { now, summary } = view;
  const ofThisNode = (gateway, route) => states?.routes.find((one) => one.gateway === gateway && one.route === route);
  const stateOf = (gateway, route) => ofThisNode(gateway, route) ?? pausedUntil(summary?.pauses ?? [], gateway, route, now);
  const [data, choice] = useRange(view);
  const shown = view.isOwn ? loaded?.metrics : summary?.metrics;
  const metrics = (shown ?? []).filter((one) => one.name.startsWith("sluicegate_gateway_"));
  const routes = [...new Set(metrics.filter((one) => one.labels.gateway).map((one) => JSON.stringify([one.labels.gateway, one.labels.route])))].map((text) => JSON.parse(text));
  const rules = [...(limits?.groups ?? []).flatMap((group) => group.rules), ...(summary?.routeLimits ?? [])];
  return html`<div class="head"><h1>Gateways</h1><span class="grow"></span>${choice}</div>
    <${Problem} text=${error} />
    <div class="grid">
      ${routes.map(([gateway, route]) => html`<${Route} key=${`${gateway}/${route}`} gateway=${gateway} route=${route} metrics=${metrics} data=${data} state=${stateOf(gateway, route)} now=${now} rule=${rules.find((rule) => rule.name === `${gateway}/${route}`)} />`)}
      ${shown && routes.length === 0 && html`<section class="panel"><${Empty}>${view.isOwn ? "This process runs" : "These nodes run"} no gateway: add <code>gateways</code> to the configuration.<//></section>`}
    </div>`;
}
