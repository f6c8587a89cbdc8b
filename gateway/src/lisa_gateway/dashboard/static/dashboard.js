// Charts, and times in the reader's zone. All else works without this file.
// Charts have the zone of the pages, UTC, and write times as the reader's locale does.
"use strict";
(function () {
  const ROOT = getComputedStyle(document.documentElement);
  const COLOURS = {
    waiting: "--waiting", ready: "--ready", delivered: "--delivered", retry: "--retry", garbage: "--garbage",
    ready_s: "--ready", read_s: "--delivered", p50: "--waiting", p99: "--garbage",
  };
  const colour = (name) => ROOT.getPropertyValue(name).trim();

  const formats = (options) => new Intl.DateTimeFormat(undefined, { timeZone: "UTC", ...options });
  const CLOCK = { hour: "2-digit", minute: "2-digit" };
  const MINUTE = formats(CLOCK);
  const SECOND = formats({ ...CLOCK, second: "2-digit" });
  const DAY = formats({ month: "short", day: "numeric" });
  const MOMENT = formats({ dateStyle: "medium", timeStyle: "medium" });

  // Labels of an axis of times, so many seconds apart: the day only where it begins.
  function timeLabels(plot, splits, axis, space, step) {
    let before = "";
    return splits.map((at) => {
      const day = DAY.format(at * 1000);
      const time = step < 86400 ? (step < 60 ? SECOND : MINUTE).format(at * 1000) : day;
      const label = step < 86400 && day !== before ? `${time}\n${day}` : time;
      before = day;
      return label;
    });
  }

  const UNITS = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];

  // As `shown_duration` of the server.
  function duration(ms) {
    if (ms < 60000) return ms < 1000 && ms ? `${Number(ms.toFixed(1))}ms` : `${Number((ms / 1000).toPrecision(3))}s`;
    const first = UNITS.findIndex(([, size]) => ms >= size);
    const [[unit, size], [below, part]] = UNITS.slice(first, first + 2);
    const rest = Math.floor((ms % size) / part);
    return `${Math.floor(ms / size)}${unit}${rest ? `${rest}${below}` : ""}`;
  }

  // As wide as its widest label.
  function axisWidth(plot, labels, at, cycle) {
    const axis = plot.axes[at];
    if (cycle > 1) return axis._size;
    plot.ctx.font = axis.font[0];
    const widths = (labels || []).map((label) => plot.ctx.measureText(label).width / devicePixelRatio);
    return Math.ceil(axis.ticks.size + axis.gap + Math.max(0, ...widths) + 4);
  }

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[data-ms]")) {
      const moment = new Date(Number(time.dataset.ms));
      if (!isNaN(moment)) {
        time.dateTime = moment.toISOString();
        time.title = moment.toLocaleString();
      }
    }
  }

  class Charts {
    constructor(root) {
      this.root = root;
      this.history = null;
      this.live = [];
      this.plots = [];
    }

    async load() {
      const response = await fetch(this.root.dataset.history, { headers: { "Accept": "application/json" } });
      if (!response.ok) return;
      this.history = await response.json();
      const last = this.history.at.at(-1) || 0;
      this.live = this.live.filter((point) => point.at > last);
      this.draw();
    }

    add(latest) {
      this.live.push({ ...latest, at: Date.now() / 1000 });
      if (this.live.length > 3600) this.live.shift();
      if (this.history) this.draw();
    }

    columns(names) {
      const live = (name) => this.live.map((point) => (point[name] === undefined ? null : point[name]));
      return ["at", ...names].map((name) => this.history[name].concat(live(name)));
    }

    draw() {
      const places = this.root.querySelectorAll(".chart");
      places.forEach((place, at) => {
        const names = place.dataset.series.split(" ");
        const columns = this.columns(names);
        if (this.plots[at]) this.plots[at].setData(columns);
        else this.plots[at] = this.make(place, names, columns);
      });
    }

    make(place, names, columns) {
      const shown = (place.dataset.names || names.join(",")).split(",");
      const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const isTime = place.dataset.unit === "ms";
      const show = (value) => (isTime ? duration(value) : value.toLocaleString());
      const options = {
        ...this.size(place),
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        series: [{ label: "time (UTC)", value: (plot, at) => (at === null ? "--" : MOMENT.format(at * 1000)) }, ...names.map((name, at) => ({
          label: shown[at], stroke: colour(COLOURS[name]), width: 1.5, spanGaps: true, points: { show: columns[0].length < 3 },
          value: (plot, value) => (value === null ? "--" : show(value)),
        }))],
        axes: [
          { ...axis, space: 85, values: timeLabels },
          { ...axis, size: axisWidth, values: (plot, splits) => splits.map(show) },
        ],
        scales: { y: { range: (plot, low, high) => [0, Math.max(1, high || 1) * 1.05] } },
      };
      return new uPlot(options, columns, place);
    }

    size(place) {
      return { width: Math.max(200, place.clientWidth), height: 190 };
    }

    resize() {
      this.root.querySelectorAll(".chart").forEach((place, at) => this.plots[at] && this.plots[at].setSize(this.size(place)));
    }
  }

  const root = document.querySelector("[data-history]");
  const charts = root ? new Charts(root) : null;

  document.body.addEventListener("htmx:sseMessage", (event) => {
    showTimes(event.target);
    const latest = document.getElementById("latest");
    if (charts && latest) charts.add(JSON.parse(latest.dataset.latest));
  });
  showTimes(document);
  if (charts) {
    charts.load();
    setInterval(() => charts.load(), 60000);
    window.addEventListener("resize", () => charts.resize());
  }
})();
