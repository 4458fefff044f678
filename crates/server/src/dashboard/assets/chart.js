// Line charts and sparklines as SVG.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { number } from "./api.js";

const PAD = { left: 44, right: 8, top: 8, bottom: 20 };

/** Returns an upper end for an axis, and its lines. */
function axis(max) {
  if (!(max > 0)) return { top: 1, lines: [0, 0.5, 1] };
  const raw = max / 3;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size >= raw);
  const count = Math.ceil(max / step);
  return { top: step * count, lines: Array.from({ length: count + 1 }, (_, at) => at * step) };
}

/** Reduces values to at most `count`, each the mean of its part, so that a path stays short. */
function reduce(values, count) {
  if (values.length <= count) return values;
  const size = values.length / count;
  return Array.from({ length: count }, (_, at) => {
    const part = values.slice(Math.floor(at * size), Math.floor((at + 1) * size)).filter((value) => value !== null);
    return part.length ? part.reduce((sum, value) => sum + value, 0) / part.length : null;
  });
}

/** Fills gaps of up to three steps, which a busy machine makes, and leaves longer ones. */
function bridge(values) {
  const filled = [...values];
  let seen = -1;
  values.forEach((value, at) => {
    if (value === null) return;
    if (seen >= 0 && at - seen > 1 && at - seen <= 4) {
      for (let step = seen + 1; step < at; step += 1) filled[step] = values[seen] + ((value - values[seen]) * (step - seen)) / (at - seen);
    }
    seen = at;
  });
  return filled;
}

/** Returns the number of steps since the first value of any line, so that a young process fills its charts. */
function age(all, least) {
  const first = all.map((values) => values.findIndex((value) => value !== null)).filter((at) => at >= 0);
  const length = Math.max(0, ...all.map((values) => values.length));
  return first.length ? Math.min(length, Math.max(least, length - Math.min(...first))) : length;
}

/** Returns the path of a line; a gap starts a new part. */
function path(values, x, y) {
  let text = "";
  let open = false;
  values.forEach((value, at) => {
    if (value === null) {
      open = false;
      return;
    }
    text += `${open ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  });
  return text;
}

/** Returns the path of the area below a line. */
function area(values, x, y, base) {
  let text = "";
  let start = null;
  values.forEach((value, at) => {
    if (value !== null) {
      text += start === null ? `M${x(at).toFixed(1)} ${base}L${x(at).toFixed(1)} ${y(value).toFixed(1)}` : `L${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      if (start === null) start = at;
    }
    if (start !== null && (value === null || at === values.length - 1)) {
      text += `L${x(value === null ? at - 1 : at).toFixed(1)} ${base}Z`;
      start = null;
    }
  });
  return text;
}

function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(160, Math.round(entry.contentRect.width))));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

/**
 * A chart of lines: [{ name, color, values, fill }]. All have the same length and end at the second
 * `until`. `max` is a line to compare with, such as a limit.
 */
export function Chart({ label, lines, until, step, height = 190, format = number, max }) {
  const [box, width] = useWidth();
  const [hover, setHover] = useState(null);
  const inner = { width: width - PAD.left - PAD.right, height: height - PAD.top - PAD.bottom };
  const length = Math.max(1, age(lines.map((line) => line.values), 60));
  const shown = lines.map((line) => ({ ...line, points: reduce(bridge(line.values.slice(-length)), Math.max(2, Math.floor(inner.width / 1.5))) }));
  const points = Math.max(1, ...shown.map((line) => line.points.length));
  const highest = Math.max(0, max ?? 0, ...shown.flatMap((line) => line.points.map((value) => value ?? 0)));
  const { top, lines: marks } = axis(highest);
  const x = (at) => PAD.left + (points < 2 ? 0 : (at * inner.width) / (points - 1));
  const y = (value) => PAD.top + inner.height - (Math.min(value, top) / top) * inner.height;
  const base = PAD.top + inner.height;
  const seconds = length * step;
  const time = (share) => new Date((until - seconds * (1 - share)) * 1000);
  const clock = (at, fine) => at.toLocaleTimeString("en-GB", fine || seconds < 300 ? {} : { hour: "2-digit", minute: "2-digit" });
  const labels = width < 460 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const move = (event) => {
    const share = (event.clientX - event.currentTarget.getBoundingClientRect().left - PAD.left) / inner.width;
    setHover(share < 0 || share > 1 ? null : Math.round(share * (points - 1)));
  };
  const summary = lines.map((line) => `${line.name} ${format([...line.values].reverse().find((value) => value !== null) ?? null)}`).join(", ");
  return html`<div class="chart" ref=${box}>
    <svg height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${label}: ${summary}`} onPointerMove=${move} onPointerLeave=${() => setHover(null)}>
      ${marks.map(
        (mark) => html`<line class="rule" x1=${PAD.left} x2=${width - PAD.right} y1=${y(mark)} y2=${y(mark)} />
          <text class="axis" x=${PAD.left - 7} y=${y(mark) + 4} text-anchor="end">${format(mark)}</text>`,
      )}
      ${labels.map(
        (share) => html`<text class="axis" x=${PAD.left + share * inner.width} y=${height - 4} text-anchor=${share === 0 ? "start" : share === 1 ? "end" : "middle"}>${clock(time(share))}</text>`,
      )}
      ${shown.map(
        (line) => html`<g class=${`c-${line.color}`}>
          ${line.fill && html`<path d=${area(line.points, x, y, base)} fill="currentColor" fill-opacity="0.14" />`}
          <path d=${path(line.points, x, y)} fill="none" stroke="currentColor" stroke-width="1.6" stroke-linejoin="round" />
        </g>`,
      )}
      ${max !== undefined && html`<line class="c-denied" x1=${PAD.left} x2=${width - PAD.right} y1=${y(max)} y2=${y(max)} stroke="currentColor" stroke-dasharray="5 4" />`}
      ${hover !== null && html`<line class="cross" x1=${x(hover)} x2=${x(hover)} y1=${PAD.top} y2=${base} />`}
    </svg>
    ${hover !== null &&
    html`<div class="tip" style=${x(hover) > width / 2 ? { right: `${width - x(hover) + 10}px` } : { left: `${x(hover) + 10}px` }}>
      <div class="soft">${clock(time(points < 2 ? 1 : hover / (points - 1)), true)}</div>
      ${shown.map((line) => html`<div><i class=${`b-${line.color}`}></i>${line.name} <b>${format(line.points[hover] ?? null)}</b></div>`)}
    </div>`}
  </div>`;
}

/** The names and colours of a chart. */
export const Legend = ({ lines }) => html`<div class="legend">${lines.map((line) => html`<span><i class=${`b-${line.color}`}></i>${line.name}</span>`)}</div>`;

/** A small line without axes, for a table. */
export function Sparkline({ values, color = "allowed", label, width = 92, height = 24, max }) {
  const points = reduce(bridge(values.slice(-age([values], 30))), 60);
  const top = Math.max(max ?? 0, ...points.map((value) => value ?? 0)) || 1;
  const x = (at) => (points.length < 2 ? 0 : (at * (width - 2)) / (points.length - 1) + 1);
  const y = (value) => height - 2 - (Math.min(value, top) / top) * (height - 4);
  return html`<svg class=${`spark c-${color}`} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
    <path d=${area(points, x, y, height - 1)} fill="currentColor" fill-opacity="0.12" />
    <path d=${path(points, x, y)} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" />
  </svg>`;
}
