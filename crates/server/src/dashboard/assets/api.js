// Calls of the API, the live data, and formats.

/** Cancels the requests of the current session. */
let session = new AbortController();

/** Sends a request. Throws an error with the detail that the service gives. */
async function send(method, path, body) {
  const options = { method, headers: {}, credentials: "same-origin", cache: "no-store", signal: session.signal };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response, text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch {
    throw new Error("no answer from the service: is it running?");
  }
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {}
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/login") listeners.login.forEach((listen) => listen());
  throw new Error((answer && answer.detail) || text || `status ${response.status}`);
}
export const get = (path) => send("GET", path);
/** Adds the reason of an action to a path. */
export const because = (path, reason) => `${path}${path.includes("?") ? "&" : "?"}reason=${encodeURIComponent(reason)}`;
export const post = (path, body) => send("POST", path, body ?? {});
export const remove = (path) => send("DELETE", path);

const listeners = { tick: new Set(), tail: new Set(), login: new Set() };

/** Calls `listen` on an event: tick, tail, or login (a login is needed). Returns a function that stops it. */
export function on(event, listen) {
  listeners[event].add(listen);
  return () => listeners[event].delete(listen);
}

/** Number of seconds that are kept. */
const SECONDS = 900;

/** The series of the last 15 minutes, one value per second up to `until`. */
export const live = { until: 0, step: 1, series: {}, connected: false, tail: false };
let source = null;
let retry = null;
/** True from `connect` to `disconnect`, also while the page is hidden. */
let wanted = false;
/** Counts connections, so that an older one that is still loading does nothing. */
let turn = 0;

/** Loads the series of the last 15 minutes, and follows them while the page is visible. */
export async function connect(tail = live.tail) {
  live.tail = tail;
  close();
  wanted = true;
  // A browser has six connections to a host, so a hidden page holds none.
  if (document.hidden) return;
  const own = turn;
  try {
    const loaded = await get("/v1/dashboard/series");
    if (own !== turn) return;
    live.until = loaded.until;
    live.series = loaded.series;
  } catch {
    if (own === turn) retry = setTimeout(() => connect(), 3000);
    return;
  }
  source = new EventSource(`/v1/dashboard/events${live.tail ? "?tail=true" : ""}`);
  source.addEventListener("tick", (event) => {
    const { second, values } = JSON.parse(event.data);
    live.connected = true;
    append(second, values);
    listeners.tick.forEach((listen) => listen());
  });
  source.addEventListener("decisions", (event) => {
    const news = JSON.parse(event.data);
    listeners.tail.forEach((listen) => listen(news));
  });
  source.onerror = () => {
    live.connected = false;
    listeners.tick.forEach((listen) => listen());
    // Loads everything again, because seconds are missing.
    close();
    retry = setTimeout(() => connect(), 3000);
  };
}

function close() {
  turn += 1;
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

/** Stops the live data, and cancels all requests that have no answer yet. */
export function disconnect() {
  wanted = false;
  close();
  session.abort();
  session = new AbortController();
}

document.addEventListener("visibilitychange", () => {
  if (!wanted) return;
  if (document.hidden) {
    close();
    live.connected = false;
  } else {
    connect();
  }
});

function append(second, values) {
  const missed = Math.max(0, Math.min(SECONDS, second - live.until));
  for (const name of Object.keys(values)) {
    if (!live.series[name]) live.series[name] = new Array(SECONDS).fill(null);
  }
  for (const [name, ring] of Object.entries(live.series)) {
    for (let step = 1; step <= missed; step += 1) ring.push(step === missed ? (values[name] ?? null) : null);
    if (ring.length > SECONDS) ring.splice(0, ring.length - SECONDS);
  }
  live.until = Math.max(live.until, second);
}

/** Returns the last value of a series, or 0. */
export const last = (values) => {
  for (let at = (values || []).length - 1; at >= 0 && at >= values.length - 5; at -= 1) {
    if (values[at] !== null) return values[at];
  }
  return 0;
};

/**
 * Returns the mean of the last seconds without gaps, of values that are `step` seconds apart; null without values. If
 * they are means of several seconds, it leaves out the last one, which is that of a single second.
 */
export function mean(values, seconds, step = 1) {
  const ended = step > 1 ? (values || []).slice(0, -1) : values || [];
  const found = ended.slice(-Math.max(1, Math.round(seconds / step))).filter((value) => value !== null);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

/** Returns the names and values of all series of a metric: [[label values], values]. */
export function metric(series, name) {
  const found = [];
  for (const [id, values] of Object.entries(series)) {
    if (!id.startsWith(`["${name}"`)) continue;
    const parts = JSON.parse(id);
    if (parts[0] === name) found.push([parts.slice(1), values]);
  }
  return found;
}

/** Adds series up, value by value. A gap is a gap in all of them. */
export function add(all) {
  const length = Math.max(0, ...all.map((values) => values.length));
  const sum = new Array(length).fill(null);
  for (const values of all) {
    const from = length - values.length;
    values.forEach((value, at) => {
      if (value !== null) sum[from + at] = (sum[from + at] ?? 0) + value;
    });
  }
  return sum;
}

/** Formats a number with at most three significant digits. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${short(value / 1e9)}G`;
  if (size >= 1e6) return `${short(value / 1e6)}M`;
  if (size >= 1e4) return `${short(value / 1e3)}k`;
  return short(value);
}
function short(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}
export const whole = (value) => Number(value ?? 0).toLocaleString("en");
export const percent = (part, all) => (all > 0 ? `${number((100 * part) / all)} %` : "–");
export const ms = (value) => (value === null || value === undefined ? "–" : value < 1 ? `${number(value * 1000)} µs` : `${number(value)} ms`);
/** Formats a number of bytes. */
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const step = value > 0 ? Math.min(units.length - 1, Math.floor(Math.log(value) / Math.log(1024))) : 0;
  return `${number(value / 1024 ** step)} ${units[step]}`;
}
export const clock = (text) => new Date(text).toLocaleTimeString("en-GB");

/** Formats a duration in seconds, such as 2 h 5 min. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60) ? `${Math.floor((s % 3600) / 60)} min` : ""}`.trim();
  return `${Math.floor(s / 86400)} days`;
}
export const ago = (text) => `${duration((Date.now() - new Date(text).getTime()) / 1000)} ago`;
