// Draws the charts of a page as SVG, from the data in #charts. Lines can be switched off in the legend.
"use strict";

const CHARTS = JSON.parse(document.getElementById("charts").textContent);
const COLOURS = 7;
const MARKERS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
  "M-3.5 -3.5h7v7h-7z",
  "M0 -5L5 0L0 5L-5 0z",
  "M0 -4.5L4.5 4H-4.5z",
  "M0 4.5L4.5 -4H-4.5z",
  "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
  "M-4.5 0L-1.5 -1.5L0 -4.5L1.5 -1.5L4.5 0L1.5 1.5L0 4.5L-1.5 1.5z",
];
const MOST_MARKERS = 60;
const MARGIN = { left: 48, right: 14, top: 26, bottom: 40 };
const HEIGHT = 320;

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function frame(width, height, xLabel, yLabel, label) {
  const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  image.append(svg("text", { x: 0, y: 12 }, yLabel));
  image.append(svg("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  return image;
}

// Round numbers from low to high, about so many.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const marks = [];
  for (let mark = Math.ceil(low / step - 1e-9) * step; mark <= high + 1e-9 * step; mark += step) marks.push(Number(mark.toPrecision(9)));
  return marks;
}

function valueText(value, error, percent) {
  const text = percent ? value.toFixed(2) : String(value);
  return text + (error === null || error === undefined ? "" : ` ±${error.toFixed(2)}`) + (percent ? " %" : "");
}

// A path through points [x, y]; y is null at a gap.
function path(points) {
  return points.map(([x, y], at) => (y === null ? "" : `${at && points[at - 1][1] !== null ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
}

function colourOf(style) {
  return `var(--line-${style % COLOURS})`;
}

function markerOf(style, attributes) {
  return svg("path", { d: MARKERS[Math.floor(style / COLOURS) % MARKERS.length], fill: colourOf(style), ...attributes });
}

function drawLines(chart, width, label) {
  const known = chart.series.flatMap((line) => line.y).filter((value) => value !== null);
  const xs = [...new Set(chart.series.flatMap((line) => line.x))].sort((a, b) => a - b);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const margin = (high - low || 1) * 0.05;
  const [bottom, top] = chart.limits ?? [low - margin, high + margin];
  const right = width - MARGIN.right;
  const base = HEIGHT - MARGIN.bottom;
  const x = (value) => MARGIN.left + 8 + ((value - xs[0]) / (xs.at(-1) - xs[0] || 1)) * (right - MARGIN.left - 16);
  const y = (value) => base - ((value - bottom) / (top - bottom)) * (base - MARGIN.top);
  const image = frame(width, HEIGHT, chart.x_label, chart.y_label, label);
  for (const mark of ticks(bottom, top, 6)) {
    image.append(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(mark), y2: y(mark) }));
    image.append(svg("text", { x: MARGIN.left - 6, y: y(mark) + 4, "text-anchor": "end" }, String(mark)));
  }
  // A mark below every point, or below some of them, counted from the last.
  const most = Math.max(2, Math.floor((right - MARGIN.left) / 40));
  const numbered = chart.x_names.length > 0;
  const marks = numbered ? ticks(xs[0], xs.at(-1), Math.min(10, most)).filter(Number.isInteger)
    : xs.toReversed().filter((_, at) => at % Math.ceil(xs.length / Math.min(12, most)) === 0);
  for (const mark of marks) image.append(svg("text", { x: x(mark), y: base + 16, "text-anchor": "middle" }, String(mark)));

  const anyHighlighted = chart.series.some((line) => line.is_highlighted);
  const drawn = chart.series.map((line, at) => {
    const style = chart.styles[at];
    const points = line.x.map((value, point) => [x(value), line.y[point] === null ? null : y(line.y[point])]);
    const group = svg("g", { "data-line": line.name });
    if (line.error) {
      const ends = (sign) => line.x.map((value, point) => [x(value), y(line.y[point] + sign * (line.error[point] ?? 0))]);
      group.append(svg("path", { d: `${path([...ends(1), ...ends(-1).reverse()])}z`, fill: colourOf(style), opacity: 0.15 }));
    }
    const thickness = line.is_highlighted ? 3.2 : anyHighlighted || !line.is_primary ? 1.5 : 2.2;
    group.append(svg("path", {
      d: path(points), fill: "none", stroke: colourOf(style), "stroke-width": thickness, "stroke-linejoin": "round",
      ...(line.is_primary ? {} : { "stroke-dasharray": "6 4" }),
    }));
    if (points.length <= MOST_MARKERS) {
      for (const [px, py] of points) if (py !== null) group.append(markerOf(style, { transform: `translate(${px} ${py})`, class: "marker" }));
    }
    return { line, style, points, group };
  });
  // The highlighted line is drawn last, above the others.
  const order = drawn.toSorted((a, b) => a.line.is_highlighted - b.line.is_highlighted);
  image.append(...order.map(({ group }) => group));
  const ring = svg("circle", { r: 7, class: "ring", visibility: "hidden" });
  image.append(ring);

  const tipAt = (px, py) => {
    let nearest = null;
    for (const { line, style, points, group } of drawn) {
      if (group.style.display === "none") continue;
      points.forEach(([qx, qy], point) => {
        const distance = qy === null ? Infinity : Math.hypot(qx - px, qy - py);
        if (distance < (nearest?.distance ?? 40)) nearest = { distance, line, style, point, at: [qx, qy] };
      });
    }
    ring.setAttribute("visibility", nearest ? "visible" : "hidden");
    if (!nearest) return null;
    const { line, style, point, at } = nearest;
    ring.setAttribute("cx", at[0]);
    ring.setAttribute("cy", at[1]);
    ring.setAttribute("stroke", colourOf(style));
    const where = chart.x_names[line.x[point] - 1] ?? `${chart.x_label}: ${line.x[point]}`;
    return { at, lines: [line.name, where, valueText(line.y[point], line.error?.[point], chart.percent)] };
  };
  return { image, tipAt, extra: drawn.length > 1 ? [legend(chart, drawn)] : [] };
}

// A button for each line, the one that ends highest first.
function legend(chart, drawn) {
  chart.hidden ??= new Set();
  const list = document.createElement("ul");
  list.className = "legend";
  const last = ({ line }) => line.y.findLast((value) => value !== null) ?? -Infinity;
  for (const { line, style, group } of drawn.toSorted((a, b) => last(b) - last(a))) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = line.is_highlighted ? "switch highlighted" : "switch";
    const sample = svg("svg", { width: 26, height: 12, viewBox: "-13 -6 26 12", "aria-hidden": "true" });
    sample.append(svg("path", { d: "M-13 0H13", stroke: colourOf(style), "stroke-width": 2, ...(line.is_primary ? {} : { "stroke-dasharray": "6 4" }) }));
    sample.append(markerOf(style, {}));
    button.append(sample, line.name);
    const refresh = () => {
      const hidden = chart.hidden.has(line.name);
      button.setAttribute("aria-pressed", String(!hidden));
      group.style.display = hidden ? "none" : "";
    };
    button.addEventListener("click", () => {
      if (!chart.hidden.delete(line.name)) chart.hidden.add(line.name);
      refresh();
    });
    refresh();
    const item = document.createElement("li");
    item.append(button);
    list.append(item);
  }
  return list;
}

function drawHeat(chart, width, label) {
  const rows = chart.values.length;
  const columns = Math.max(...chart.values.map((row) => row.length));
  const cell = Math.max(8, Math.min(64, Math.floor((width - 40) / columns)));
  const high = Math.min(cell, 44);
  const [left, top] = [32, MARGIN.top];
  const image = frame(left + columns * cell + 4, top + rows * high + MARGIN.bottom, chart.column_label, chart.row_label, label);
  chart.values.forEach((row, down) => row.forEach((value, across) => {
    const share = Math.min(100, Math.max(0, value));
    const [x, y] = [left + across * cell, top + down * high];
    image.append(svg("rect", {
      x, y, width: cell - 1, height: high - 1, style: `fill: color-mix(in srgb, var(--heat-${chart.hue}) ${share}%, var(--wash))`,
    }));
    if (cell >= 26) {
      const text = value.toFixed(cell >= 42 ? 1 : 0);
      image.append(svg("text", {
        x: x + cell / 2, y: y + high / 2 + 4, "text-anchor": "middle", style: `fill: var(--${share > 55 ? "ground" : "ink"})`,
      }, text));
    }
  }));
  const step = Math.ceil(24 / cell);
  for (let at = 0; at < columns; at += step) image.append(svg("text", { x: left + (at + 0.5) * cell, y: top + rows * high + 14, "text-anchor": "middle" }, String(at + 1)));
  for (let at = 0; at < rows; at += step) image.append(svg("text", { x: left - 6, y: top + (at + 0.5) * high + 4, "text-anchor": "end" }, String(at + 1)));
  const tipAt = (px, py) => {
    const [across, down] = [Math.floor((px - left) / cell), Math.floor((py - top) / high)];
    const value = chart.values[down]?.[across];
    if (value === undefined) return null;
    const at = [left + (across + 0.5) * cell, top + (down + 0.5) * high];
    return { at, lines: [`${chart.row_label}: ${down + 1}`, `${chart.column_label}: ${across + 1}`, value.toFixed(2)] };
  };
  return { image, tipAt, extra: [] };
}

function draw(element) {
  const width = Math.floor(element.clientWidth);
  if (!width || width === element.drawnWidth) return;
  element.drawnWidth = width;
  const { image, tipAt, extra } = (element.chart.kind === "heat" ? drawHeat : drawLines)(element.chart, width, element.dataset.label);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const point = (event) => {
    const box = image.getBoundingClientRect();
    const found = tipAt(event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.lines.join("\n");
    const [x, y] = found.at;
    tip.style.left = `${Math.max(0, Math.min(x + 12, width - tip.offsetWidth))}px`;
    tip.style.top = `${y > tip.offsetHeight + 12 ? y - tip.offsetHeight - 12 : y + 12}px`;
  };
  image.addEventListener("pointermove", point);
  image.addEventListener("pointerdown", point);
  image.addEventListener("pointerleave", () => { tip.hidden = true; });
  element.replaceChildren(image, tip, ...extra);
}

// Charts are drawn when they can be seen, and again when their width changes.
const RESIZED = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) => draw(target))));

function show(element, chart) {
  element.chart = chart;
  RESIZED.observe(element);
}

for (const element of document.querySelectorAll(".chart[data-chart]")) show(element, CHARTS[element.dataset.chart]);
