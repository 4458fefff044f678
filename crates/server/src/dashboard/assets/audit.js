// Audit: who changed what on this node, and why.
import { html } from "./vendor/preact.js";
import { Badge, Panel, Problem, Table, useLoaded } from "./parts.js";

export function Audit({ view }) {
  const [loaded, error] = useLoaded(view.isOwn ? "/v1/dashboard/audit" : null);
  const several = !view.isOwn;
  const rows = ((several ? view.summary : loaded)?.audit ?? []).map((entry) => [
    html`<span class="nowrap" title=${entry.at}>${new Date(entry.at).toLocaleString("en-GB")}</span>`,
    ...(several ? [entry.node] : []),
    entry.by,
    html`<${Badge}>${entry.action}<//>`,
    html`<span class="wrap">${entry.target}</span>`,
    html`<span class="wrap">${entry.detail}</span>`,
    entry.reason ? html`<span class="wrap">${entry.reason}</span>` : html`<span class="soft">none given</span>`,
  ]);
  return html`<div class="head"><h1>Audit</h1></div>
    <${Problem} text=${error} />
    <div class="grid">
      <${Panel} title="Actions" note=${several ? "the last ones of each node, the newest first; the log of a node has all" : "on this node, the newest first; each is also a line of its log"}>
        <${Table} label="Actions" columns=${[["time"], ...(several ? [["node"]] : []), ["by"], ["action"], ["target"], ["detail"], ["reason"]]} rows=${rows} empty="no action since the start" />
      <//>
    </div>`;
}
