// Parts that several pages use.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get, live, on } from "./api.js";

/** Draws the component again every second, when new data has arrived. */
export function useLive() {
  const [, draw] = useState(0);
  useEffect(() => on("tick", () => draw((count) => count + 1)), []);
  return live;
}

/** Time between two requests while no live data arrives, in seconds. */
const ALONE = 1;

/**
 * Loads a path now, and again whenever live data arrives: every second. With `seconds`, it is loaded every so
 * many seconds instead. A hidden page loads nothing. Returns [answer, error, reload].
 */
export function useLoaded(path, seconds) {
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    let ended = false;
    let busy = false;
    let again = false;
    let timer = null;
    const load = async () => {
      if (ended || document.hidden) return;
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      clearTimeout(timer);
      try {
        const answer = await get(path);
        if (!ended) setState({ path, answer });
      } catch (error) {
        if (!ended) setState((before) => ({ path, answer: before.path === path ? before.answer : undefined, error: error.message }));
      }
      busy = false;
      if (ended) return;
      timer = setTimeout(load, again ? 0 : 1000 * (seconds ?? (live.connected ? 3 * ALONE : ALONE)));
      again = false;
    };
    const stop = seconds ? () => {} : on("tick", load);
    document.addEventListener("visibilitychange", load);
    load();
    return () => {
      ended = true;
      clearTimeout(timer);
      stop();
      document.removeEventListener("visibilitychange", load);
    };
  }, [path, seconds, turn]);
  return [state.path === path ? state.answer : undefined, state.path === path ? state.error : undefined, () => setTurn((count) => count + 1)];
}

/** The series of a range: those of 15 minutes of the chosen nodes, or those of 24 hours, which only this node has. */
export function useRange(view) {
  const [range, setRange] = useState("15m");
  const isDay = view.isOwn && range === "24h";
  const [day] = useLoaded(isDay ? "/v1/dashboard/series?range=24h" : null, 10);
  const data = isDay ? (day ?? { until: view.live.until, step: 10, series: {} }) : view.live;
  if (!view.isOwn) return [data, html`<span class="soft small">15 min, by ten seconds; choose this node for more</span>`];
  const choice = html`<${Tabs} label="Range" value=${range} choose=${setRange} options=${[["15m", "15 min"], ["24h", "24 h"]]} />`;
  return [data, choice];
}

export const Tabs = ({ label, value, choose, options }) => html`<div class="tabs" role="group" aria-label=${label}>
  ${options.map(([key, text]) => html`<button type="button" aria-pressed=${value === key ? "true" : "false"} onClick=${() => choose(key)}>${text}</button>`)}
</div>`;

export const Panel = ({ title, note, extra, kind = "", children }) => html`<section class=${`panel ${kind}`}>
  <header><h2>${title}</h2>${note && html`<span class="soft small">${note}</span>`}<span class="grow"></span>${extra}</header>
  ${children}
</section>`;

export const Tile = ({ label, value, unit, note, color = "" }) => html`<div class="tile">
  <div class="label">${label}</div>
  <div class=${`value ${color}`}>${value}${unit && html`<small>${unit}</small>`}</div>
  ${note && html`<div class="note">${note}</div>`}
</div>`;

/** A bar of a used share; above 1 it is full. A plain one only compares sizes. */
export function Bar({ share, label, plain }) {
  const kind = plain ? "plain" : share >= 1 ? "full" : share >= 0.8 ? "high" : "";
  return html`<div class="bar" role="img" aria-label=${label ?? `${Math.round(share * 100)} % used`}>
    <i class=${kind} style=${{ width: `${Math.min(100, Math.max(0, share * 100))}%` }}></i>
  </div>`;
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;
export const Problem = ({ text }) => (text ? html`<p class="error" role="alert">${text}</p>` : null);
export const Badge = ({ color = "", children }) => html`<span class=${`badge ${color}`}>${children}</span>`;

/** Dimensions of a caller, as chips. */
export const Dimensions = ({ pairs }) => html`${pairs.map(([name, value]) => html`<span class="chip"><b>${name}=</b>${String(value)}</span>`)}`;

/** A table: columns are [title, class], rows are lists of cells. */
export const Table = ({ columns, rows, label, empty = "nothing yet" }) =>
  rows.length === 0
    ? html`<${Empty}>${empty}<//>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
        <table>
          <thead><tr>${columns.map(([title, kind]) => html`<th scope="col" class=${kind ?? ""}>${title}</th>`)}</tr></thead>
          <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, at) => html`<td class=${columns[at][1] ?? ""}>${cell}</td>`)}</tr>`)}</tbody>
        </table>
      </div>`;

/** A modal dialog. `close` is called when it is dismissed. */
export function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => {
    const element = box.current;
    if (!element.open) element.showModal();
    const closed = () => close();
    // Escape: the page removes the dialog, which closes it. If the browser closed it first, a key pressed right
    // afterwards would find the page with a dialog that it takes for open.
    const cancelled = (event) => {
      event.preventDefault();
      close();
    };
    element.addEventListener("close", closed);
    element.addEventListener("cancel", cancelled);
    return () => {
      element.removeEventListener("close", closed);
      element.removeEventListener("cancel", cancelled);
      if (element.open) element.close();
    };
  }, []);
  return html`<dialog ref=${box} aria-label=${title}><h2>${title}</h2>${children}</dialog>`;
}

let showToast = () => {};
/** Shows a short message at the bottom of the page. */
export const toast = (text) => showToast(text);
export function Toast() {
  const [text, setText] = useState(null);
  useEffect(() => {
    let timer = null;
    showToast = (next) => {
      setText(next);
      clearTimeout(timer);
      timer = setTimeout(() => setText(null), 4000);
    };
    return () => clearTimeout(timer);
  }, []);
  return html`<div role="status">${text && html`<div class="toast">${text}</div>`}</div>`;
}

/** A form that asks for a reason and runs an action. Extra fields are its children. */
export function ActionForm({ action, label, danger, close, done, children, confirm }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const text = await action(reason.trim());
      toast(text);
      done();
      close();
    } catch (problem) {
      setError(problem.message);
    }
    setBusy(false);
  };
  return html`<form class="form" onSubmit=${submit}>
    ${children}
    <div class="field">
      <label for="reason">Reason (kept in the audit log)</label>
      <input id="reason" required maxlength="300" autocomplete="off" value=${reason} onInput=${(event) => setReason(event.target.value)} />
    </div>
    ${confirm}
    <${Problem} text=${error} />
    <div class="row end">
      <button type="button" onClick=${close}>Cancel</button>
      <button class=${`primary ${danger ? "danger" : ""}`} disabled=${busy}>${label}</button>
    </div>
  </form>`;
}
