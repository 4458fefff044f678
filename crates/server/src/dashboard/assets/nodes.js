// The chosen nodes: all together, this one, or another one. Every page shows their data.
import { html, useRef, useState } from "./vendor/preact.js";
import { useLive, useLoaded } from "./parts.js";

const remembered = () => {
  try {
    return sessionStorage.getItem("nodes") ?? "all";
  } catch {
    return "all";
  }
};

/**
 * Loads the summary of the chosen nodes every second. `isOwn` is true if only this node is shown, whose
 * charts have a value for every second; those of other nodes have one for every ten seconds.
 */
export function useView() {
  const [chosen, setChosen] = useState(remembered());
  const now = useLive();
  const [answer, error] = useLoaded(`/v1/dashboard/summary?node=${encodeURIComponent(chosen)}`);
  const known = useRef({ nodes: [], own: null });
  if (answer) known.current = answer;
  const { nodes, own } = known.current;
  const isOwn = chosen === "own" || chosen === own || (chosen === "all" && nodes.length < 2);
  const summary = answer?.summary ?? null;
  const shared = summary?.series ?? { until: now.until, step: 10, values: {} };
  const choose = (node) => {
    setChosen(node);
    try {
      sessionStorage.setItem("nodes", node);
    } catch {}
  };
  return {
    chosen, choose, nodes, own, isOwn, summary, error,
    several: nodes.length > 1,
    /** True if the chosen node has written no summary lately. */
    gone: answer !== undefined && summary === null,
    /** The reason why other nodes are unknown. */
    problem: answer?.problem,
    now: answer ? new Date(answer.now).getTime() : Date.now(),
    live: isOwn ? now : { until: shared.until, step: shared.step, series: shared.values },
  };
}

const shortId = (node) => `${node.host} ${String(node.id).slice(0, 8)}`;

/** The choice of nodes, if there are several. */
export function NodeChoice({ view }) {
  const { nodes, own, chosen, choose, several, gone } = view;
  if (!several && !gone && !view.problem) return null;
  const value = chosen === own ? "own" : chosen;
  return html`<div class="nodes row">
    <label for="nodes">Nodes</label>
    <select id="nodes" value=${value} onChange=${(event) => choose(event.target.value)}>
      <option value="all">all ${nodes.length} together</option>
      <option value="own">this node</option>
      ${nodes.filter((node) => node.id !== own).map((node) => html`<option value=${node.id}>${shortId(node)}</option>`)}
      ${gone && html`<option value=${chosen}>${chosen.slice(0, 8)} (stopped)</option>`}
    </select>
    ${gone && html`<span class="amber" role="status">This node has sent nothing for some seconds. Choose another one.</span>`}
    ${view.problem && html`<span class="amber" role="status">Other nodes are not known: ${view.problem}</span>`}
  </div>`;
}

/** The names of the nodes of an entry, if several are shown. */
export const Hosts = ({ view, names }) => (view.isOwn || !names?.length ? null : html`<span class="soft small">${names.join(", ")}</span>`);
