// Limits: every rule, the callers that are denied most, and the keys closest to their limits.
import { html, useState } from "./vendor/preact.js";
import { because, clock, duration, number, percent, remove, whole } from "./api.js";
import { ActionForm, Badge, Bar, Dialog, Dimensions, Panel, Problem, Table, Tabs, useLoaded } from "./parts.js";

const DIMENSIONS = [["userId", "Users"], ["tenantId", "Tenants"], ["modelId", "Models"], ["apiKey", "API keys"]];

/** Returns the address of the page of a caller. */
export const callerAddress = (pairs) => `#/caller?${new URLSearchParams(pairs)}`;

/** A link to the page of a caller. Dimensions of our own, such as @route, name no caller. */
export function CallerLink({ pairs }) {
  if (pairs.length === 0) return html`<span class="soft">everyone together</span>`;
  const shown = html`<${Dimensions} pairs=${pairs} />`;
  return pairs.some(([name]) => name.startsWith("@") || name === "apiKey") ? shown : html`<a href=${callerAddress(pairs)}>${shown}</a>`;
}

function Search() {
  const [pairs, setPairs] = useState([["userId", ""], ["modelId", ""], ["tenantId", ""]]);
  const change = (at, part, text) => setPairs(pairs.map((pair, number) => (number === at ? (part === 0 ? [text, pair[1]] : [pair[0], text]) : pair)));
  const submit = (event) => {
    event.preventDefault();
    const given = pairs.filter(([name, value]) => name.trim() && value.trim());
    if (given.length) location.hash = callerAddress(given);
  };
  return html`<form class="body row bottom" onSubmit=${submit}>
    ${pairs.map(
      ([name, value], at) => html`<div class="field">
        ${at < 3 ? html`<label for=${`dimension-${at}`}>${name}</label>` : html`<input aria-label="Name of the dimension" placeholder="dimension" size="12" value=${name} onInput=${(event) => change(at, 0, event.target.value)} />`}
        <input id=${`dimension-${at}`} aria-label=${at < 3 ? undefined : "Value"} size="18" autocomplete="off" value=${value} onInput=${(event) => change(at, 1, event.target.value)} />
      </div>`,
    )}
    <button type="button" onClick=${() => setPairs([...pairs, ["", ""]])}>Add a dimension</button><button class="primary">Look up</button>
  </form>`;
}

function Callers({ limits }) {
  const [dimension, setDimension] = useState("userId");
  const [by, setBy] = useState("denied");
  const found = limits?.callers?.[dimension]?.[by] ?? [];
  const most = Math.max(1, ...found.map((caller) => caller.count));
  const rows = found.slice(0, 15).map((caller) => [
    dimension === "apiKey" ? html`<span class="mono wrap">${caller.value}</span>` : html`<a class="mono wrap" href=${callerAddress([[dimension, caller.value]])}>${caller.value}</a>`,
    html`<${Bar} plain share=${caller.count / most} label=${`${caller.count} of ${most}`} />`,
    html`${whole(caller.count)}${caller.error > 0 && html` <span class="soft" title="The count may be too high by this">±${number(caller.error)}</span>`}`,
    ...(by === "denied" ? [] : [percent(caller.denied, caller.count)]),
  ]);
  const columns = by === "denied" ? [["caller", "key"], ["share"], ["denied", "num"]] : [["caller", "key"], ["share"], ["requests", "num"], ["denied", "num"]];
  const shares = limits?.sampled ?? {};
  const sampled = by === "denied" ? shares.denials : shares.admissions;
  const note = limits ? `since ${clock(limits.since)}${sampled < 1 ? `, from a sample of ${number(100 * sampled)} %` : ""}` : "";
  return html`<${Panel} kind="half" title=${by === "denied" ? "Denied most" : "Most requests"} note=${note}
    extra=${html`<span class="row"><${Tabs} label="Dimension" value=${dimension} choose=${setDimension} options=${DIMENSIONS} /><${Tabs} label="Ranking" value=${by} choose=${setBy} options=${[["denied", "Denied"], ["requested", "Requests"]]} /></span>`}>
    <${Table} label="Callers" columns=${columns} rows=${rows} empty=${by === "denied" ? "nobody was denied" : "no requests yet"} />
  <//>`;
}

function Closest({ limits }) {
  const [dimension, setDimension] = useState("any");
  const found = (limits?.closest ?? []).filter((usage) => dimension === "any" || usage.dimensions.some(([name]) => name === dimension));
  const rows = found.slice(0, 15).map((usage) => [
    html`<${CallerLink} pairs=${usage.dimensions} />`,
    html`<span title=${`seen at ${clock(usage.at)}`}>${usage.rule}</span><br /><span class="soft small">${usage.limit}</span>`,
    html`<${Bar} share=${usage.share} />`,
    html`${whole(usage.used)} <span class="soft">/ ${whole(usage.of)}</span>${Number(usage.bookedAhead) > 0 && html`<div class="soft small">${whole(usage.bookedAhead)} booked ahead</div>`}`,
  ]);
  return html`<${Panel} kind="half" title="Closest to the limit" note="as the last decisions saw it"
    extra=${html`<${Tabs} label="Dimension" value=${dimension} choose=${setDimension} options=${[["any", "All"], ...DIMENSIONS]} />`}>
    <${Table} label="Closest to the limit" columns=${[["key"], ["rule"], ["share"], ["used", "num"]]} rows=${rows} empty="no usage yet" />
  <//>`;
}

function Rules({ limits }) {
  const groups = limits?.groups ?? [];
  return html`<${Panel} title="Rules" note="as compiled; every group must pass, and inside a group the first rule that matches applies">
    <div class="scroll" tabindex="0" role="region" aria-label="Rules">
      <table>
        <thead><tr><th scope="col">rule</th><th scope="col">limit</th><th scope="col">per</th><th scope="col">when</th><th scope="col" class="num">allowed</th><th scope="col" class="num">denied</th></tr></thead>
        <tbody>
          ${groups.map(
            (group) => html`<tr class="group-row"><td colspan="6">${group.group}</td></tr>
              ${group.rules.map(
                (rule) => html`<tr>
                  <td><b>${rule.name}</b> ${rule.shadow && html`<${Badge} color="amber">shadow<//>`} ${rule.optimistic && html`<${Badge}>optimistic<//>`} ${rule.outage && html`<${Badge}>outage: ${rule.outage}<//>`}
                    ${rule.description && html`<div class="soft small">${rule.description}</div>`}</td>
                  <td>${rule.limits.length ? rule.limits.map((limit) => html`<span class="chip">${limit}</span>`) : html`<span class="soft">no limit</span>`}</td>
                  <td>${rule.per.length ? rule.per.map((name) => html`<span class="chip">${name}</span>`) : html`<span class="soft">everyone together</span>`}</td>
                  <td>${rule.when.length ? rule.when.map((text) => html`<span class="chip">${text}</span>`) : html`<span class="soft">always</span>`}</td>
                  <td class="num">${whole(rule.allowed)}</td>
                  <td class="num"><span class=${rule.denied > 0 ? "red" : ""}>${whole(rule.denied)}</span>${rule.shadowDenied > 0 && html`<div class="soft small">${whole(rule.shadowDenied)} would be</div>`}</td>
                </tr>`,
              )}`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

export function OverrideTable({ overrides, admin, changed }) {
  const [removing, setRemoving] = useState(null);
  const rows = (overrides ?? []).map((one) => {
    const when = Object.entries(one.when ?? {}).map(([name, value]) => [name, Array.isArray(value) ? value.join(" | ") : value]);
    const limits = Array.isArray(one.limit) ? one.limit : [one.limit];
    return [
      html`<b>${one.rule}</b>${one.problem && html`<div class="red small">no effect: ${one.problem}</div>`}`,
      when.length ? html`<${Dimensions} pairs=${when} />` : html`<span class="soft">all requests</span>`,
      limits.map((limit) => (limit === "0" ? html`<${Badge} color="red">banned<//>` : html`<span class="chip">${limit}</span>`)),
      one.expiresAt ? html`<span title=${one.expiresAt}>${duration((new Date(one.expiresAt) - Date.now()) / 1000)} left</span>` : "no end",
      html`${one.reason}<div class="soft small">${one.by}, ${clock(one.since)}</div>`,
      admin ? html`<button type="button" onClick=${() => setRemoving(one)}>Remove</button>` : "",
    ];
  });
  return html`<${Table} label="Overrides" columns=${[["rule"], ["for"], ["limit"], ["ends"], ["reason"], ["action"]]} rows=${rows} empty="no overrides: the limits of the rules apply" />
    ${removing &&
    html`<${Dialog} title=${`Remove the override of ${removing.rule}`} close=${() => setRemoving(null)}>
      <${ActionForm} label="Remove" danger close=${() => setRemoving(null)} done=${changed}
        action=${async (reason) => {
          await remove(because(`/v1/overrides/${encodeURIComponent(removing.id)}`, reason));
          return "Override removed";
        }} />
    <//>`}`;
}

/** Returns the groups of rules with the counts of the chosen nodes. */
function withCounts(groups, counts) {
  const of = new Map(counts.map(([name, allowed, denied, shadowDenied]) => [name, { allowed, denied, shadowDenied }]));
  const none = { allowed: 0, denied: 0, shadowDenied: 0 };
  return groups.map((group) => ({ ...group, rules: group.rules.map((rule) => ({ ...rule, ...(of.get(rule.name) ?? none) })) }));
}

export function Limits({ admin, view }) {
  const [own, error] = useLoaded("/v1/dashboard/limits");
  const { summary } = view;
  const limits = own && !view.isOwn && summary ? { ...own, ...summary, groups: withCounts(own.groups, summary.rules) } : own;
  const [overrides, , changed] = useLoaded("/v1/overrides");
  return html`<div class="head"><h1>Limits</h1></div>
    <${Problem} text=${error} />
    <div class="grid">
      <${Panel} title="Look up a caller" note="its usage in every window, why it is allowed or denied, and actions"><${Search} /><//>
      <${Callers} limits=${limits} />
      <${Closest} limits=${limits} />
      <${Panel} title="Overrides"><${OverrideTable} overrides=${overrides?.overrides} admin=${admin} changed=${changed} /><//>
      <${Rules} limits=${limits} />
    </div>`;
}
