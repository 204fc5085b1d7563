// Draws the charts of a page with Bokeh. Data is in #charts; a chart is drawn anew when its width or the scheme changes.
"use strict";

const CHARTS = JSON.parse(document.getElementById("charts").textContent);
const DARK = matchMedia("(prefers-color-scheme: dark)");
const HUES = {
  blue: { light: ["#f1f6fc", "#08488e"], dark: ["#1c2733", "#7fbdf5"] },
  orange: { light: ["#fdf3ea", "#a63c00"], dark: ["#2b211a", "#ffa25c"] },
};

const MARKERS = ["circle", "square", "diamond", "triangle", "inverted_triangle", "plus", "star"];

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const hex = (rgb) => "#" + rgb.map((own) => Math.round(own).toString(16).padStart(2, "0")).join("");
const mix = (from, to, share) => {
  const end = channels(to);
  return hex(channels(from).map((own, at) => own + (end[at] - own) * share));
};
const luminance = (colour) => channels(colour)
  .map((own) => own / 255)
  .map((own) => (own <= 0.03928 ? own / 12.92 : ((own + 0.055) / 1.055) ** 2.4))
  .reduce((sum, own, at) => sum + own * [0.2126, 0.7152, 0.0722][at], 0);

function inks() {
  return DARK.matches
    ? { ground: "#14171a", ink: "#d5dade", grid: "#2c3238", scheme: "dark" }
    : { ground: "#ffffff", ink: "#333a41", grid: "#e6e9ec", scheme: "light" };
}

// A colour that can be seen on the ground of the page: on a dark one, dark colours are made lighter.
function seen(colour, scheme) {
  for (let tries = 0; scheme === "dark" && luminance(colour) < 0.14 && tries < 8; tries++) colour = mix(colour, "#ffffff", 0.2);
  return colour;
}

// Heights of labels, at least so far from each other, as near as can be to where they belong: those in a crowd share
// the mean of what they want, and move apart about it.
function spread(wanted, least, bottom, top) {
  const order = wanted.map((_, at) => at).sort((a, b) => wanted[a] - wanted[b]);
  const mean = (crowd) => crowd.reduce((sum, own) => sum + own, 0) / crowd.length;
  const crowds = [];
  order.forEach((at, number) => {
    crowds.push([wanted[at] - number * least]);
    while (crowds.length > 1 && mean(crowds.at(-2)) > mean(crowds.at(-1))) {
      const last = crowds.pop();
      crowds.at(-1).push(...last);
    }
  });
  const means = crowds.flatMap((crowd) => crowd.map(() => mean(crowd)));
  const highest = top - (order.length - 1) * least;
  const placed = [];
  order.forEach((at, number) => { placed[at] = Math.max(bottom, Math.min(means[number], highest)) + number * least; });
  return placed;
}

function figure(width, height, across, along, colours, more) {
  const plot = Bokeh.Plotting.figure({
    width, height, sizing_mode: "fixed", toolbar_location: null, tools: [], min_border_right: 12,
    background_fill_color: null, border_fill_color: null, outline_line_color: null, ...more,
  });
  const text = { text_color: colours.ink, text_font: "system-ui, sans-serif" };
  for (const [axis, label] of [[plot.xaxis, across], [plot.yaxis, along]]) {
    for (const own of axis) {
      own.setv({
        axis_label: label, axis_label_text_color: text.text_color, axis_label_text_font: text.text_font,
        axis_label_text_font_style: "normal", axis_label_text_font_size: "12px",
        major_label_text_color: text.text_color, major_label_text_font: text.text_font,
        major_label_text_font_size: "11px", axis_line_color: null, major_tick_line_color: null, minor_tick_line_color: null,
      });
    }
  }
  for (const grid of [...plot.xgrid, ...plot.ygrid]) grid.setv({ grid_line_color: colours.grid });
  return plot;
}

function lines(chart, width) {
  const colours = inks();
  const known = chart.series.flatMap((one) => one.along).filter((value) => value !== null);
  const all = chart.series.flatMap((one) => one.across);
  const [first, last] = [Math.min(...all), Math.max(...all)];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const margin = (high - low || 1) * 0.05;
  const [bottom, top] = chart.limits ?? [low - margin, high + margin];
  const height = Math.max(300, 90 + 15 * chart.series.length);
  // Room for the names at the ends of the lines, as many pixels as the longest needs.
  const named = chart.series.length > 1;
  const room = named ? Math.min(0.45 * width, 24 + 6.8 * Math.max(...chart.series.map((one) => one.name.length))) : 0;
  const frame = Math.max(60, width - 80);
  const span = last - first || 1;
  const plot = figure(width, height, chart.across, chart.along, colours, {
    x_range: new Bokeh.Range1d({ start: first - 0.02 * span, end: first + span * (1.02 + room / (frame - room)) }),
    // The points at the very top are drawn whole.
    y_range: new Bokeh.Range1d({ start: bottom, end: top + 0.02 * (top - bottom) }),
  });
  if (!chart.places.length) {
    // Where points are, or where some of them are; counted from the last.
    const places = [...new Set(all)].sort((a, b) => b - a);
    const step = Math.ceil(places.length / Math.min(12, Math.max(2, Math.floor((frame - room) / 34))));
    const ticker = new Bokeh.FixedTicker({ ticks: places.filter((_, at) => at % step === 0) });
    for (const own of [...plot.xaxis, ...plot.xgrid]) own.ticker = ticker;
  }
  const hovered = [];
  const marked = chart.series.some((one) => one.marked);
  const width_of = (one) => (one.marked ? 3.4 : marked || !one.leads ? 1.5 : 2.2);
  // The one in question last, so that it lies above the others.
  const order = chart.series.map((_, at) => at).sort((a, b) => chart.series[a].marked - chart.series[b].marked);
  order.forEach((at) => {
    const one = chart.series[at];
    const colour = seen(chart.colours[at], colours.scheme);
    const along = one.along.map((value) => value ?? NaN);
    const data = {
      across: one.across, along,
      name: one.along.map(() => one.name),
      place: one.across.map((value) => chart.places[value - 1] ?? `${chart.across}: ${value}`),
      value: one.along.map((value, point) => (value === null ? "" : worded(value, one.error?.[point], chart.percent))),
    };
    if (one.error) {
      data.low = along.map((value, point) => value - (one.error[point] ?? 0));
      data.high = along.map((value, point) => value + (one.error[point] ?? 0));
    }
    const source = new Bokeh.ColumnDataSource({ data });
    if (one.error) plot.varea({ field: "across" }, { field: "low" }, { field: "high" }, { source, fill_color: colour, fill_alpha: 0.15 });
    hovered.push(plot.line({ field: "across" }, { field: "along" }, {
      source, line_color: colour, line_width: width_of(one), line_dash: one.leads ? "solid" : [6, 4],
    }));
    if (one.across.length <= 60) {
      hovered.push(plot.scatter({ field: "across" }, { field: "along" }, {
        source, size: one.marked ? 9 : 7, marker: MARKERS[Math.floor(at / 7) % MARKERS.length],
        fill_color: colour, line_color: colours.ground, line_width: 1,
      }));
    }
  });
  if (named) {
    const ends = chart.series.map((one) => one.along.findLast((value) => value !== null) ?? bottom);
    const line = (top - bottom) / (height - 60);
    const heights = spread(ends, 14 * line, bottom + 5 * line, top - 5 * line);
    chart.series.forEach((one, at) => {
      const end = one.across[one.along.findLastIndex((value) => value !== null)] ?? last;
      const edge = last + 14 * (span / (frame - room));
      plot.line([end, edge], [ends[at], heights[at]], { line_color: seen(chart.colours[at], colours.scheme), line_alpha: 0.6 });
      plot.text([edge], [heights[at]], [one.name], {
        text_color: seen(mix(chart.colours[at], colours.ink, 0.2), colours.scheme), text_font: "system-ui, sans-serif",
        text_font_size: "12px", text_baseline: "middle", x_offset: 4,
        text_font_style: one.marked || (one.leads && !marked) ? "bold" : "normal",
      });
    });
  }
  plot.add_tools(new Bokeh.HoverTool({
    renderers: hovered, mode: "mouse", line_policy: "nearest",
    tooltips: [["", "@name"], ["", "@place"], ["", "@value"]],
  }));
  return plot;
}

function worded(value, error, percent) {
  const shown = percent ? value.toFixed(2) : String(value);
  return shown + (error === null || error === undefined ? "" : ` ±${error.toFixed(2)}`) + (percent ? " %" : "");
}

function heat(chart, width) {
  const colours = inks();
  const [palest, deepest] = HUES[chart.hue][colours.scheme];
  const rows = chart.values.length;
  const columns = Math.max(...chart.values.map((row) => row.length));
  const cell = Math.max(8, Math.min(64, Math.floor((width - 64) / columns)));
  const data = { x: [], y: [], colour: [], ink: [], value: [], shown: [] };
  chart.values.forEach((row, down) => row.forEach((value, across) => {
    const colour = mix(palest, deepest, Math.min(1, Math.max(0, value / 100)));
    data.x.push(across + 1);
    data.y.push(down + 1);
    data.colour.push(colour);
    data.ink.push(luminance(colour) > 0.2 ? "#14171a" : "#ffffff");
    data.value.push(value.toFixed(2));
    data.shown.push(cell >= 26 ? value.toFixed(cell >= 42 ? 1 : 0) : "");
  }));
  const plot = figure(columns * cell + 64, rows * Math.min(cell, 44) + 54, chart.across, chart.down, colours, {
    x_range: new Bokeh.Range1d({ start: 0.5, end: columns + 0.5 }),
    y_range: new Bokeh.Range1d({ start: rows + 0.5, end: 0.5 }),
  });
  const step = Math.ceil(24 / cell);
  const ticks = (count) => Array.from({ length: count }, (_, at) => at + 1).filter((at) => (at - 1) % step === 0);
  for (const axis of plot.xaxis) axis.ticker = new Bokeh.FixedTicker({ ticks: ticks(columns) });
  for (const axis of plot.yaxis) axis.ticker = new Bokeh.FixedTicker({ ticks: ticks(rows) });
  for (const grid of [...plot.xgrid, ...plot.ygrid]) grid.setv({ grid_line_color: null });
  const source = new Bokeh.ColumnDataSource({ data });
  const cells = plot.rect({ field: "x" }, { field: "y" }, 1, 1, {
    source, fill_color: { field: "colour" }, line_color: colours.ground, line_width: cell > 16 ? 2 : 0.5,
  });
  plot.text({ field: "x" }, { field: "y" }, { field: "shown" }, {
    source, text_color: { field: "ink" }, text_align: "center", text_baseline: "middle", text_font: "system-ui, sans-serif",
    text_font_size: "11px",
  });
  plot.add_tools(new Bokeh.HoverTool({
    renderers: [cells], tooltips: [[chart.down, "@y"], [chart.across, "@x"], ["", "@value"]],
  }));
  return plot;
}

// Draw a chart in an element; what was drawn there before is removed.
async function draw(element, chart) {
  const width = Math.floor(element.clientWidth);
  if (!width) return;
  element.chart = chart;
  element.drawn = `${width} ${inks().scheme}`;
  const plot = (chart.kind === "heat" ? heat : lines)(chart, width);
  element.view?.remove();
  element.replaceChildren();
  element.classList.toggle("dark", DARK.matches);
  element.view = await Bokeh.Plotting.show(plot, element);
}

function drawAgain() {
  for (const element of document.querySelectorAll(".chart")) {
    const now = `${Math.floor(element.clientWidth)} ${inks().scheme}`;
    if (element.chart && element.drawn !== now) draw(element, element.chart);
  }
}

function drawAll(within = document) {
  for (const element of within.querySelectorAll(".chart[data-chart]")) draw(element, CHARTS[element.dataset.chart]);
}

DARK.addEventListener("change", drawAgain);
addEventListener("resize", () => {
  clearTimeout(window.settled);
  window.settled = setTimeout(drawAgain, 150);
});
