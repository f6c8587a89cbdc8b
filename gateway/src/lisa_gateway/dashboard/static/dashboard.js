// Charts, and times in the reader's zone. All else works without this file.
"use strict";
(function () {
  const ROOT = getComputedStyle(document.documentElement);
  const COLOURS = {
    waiting: "--waiting", ready: "--ready", delivered: "--delivered", retry: "--retry", garbage: "--garbage",
    ready_s: "--ready", read_s: "--delivered", p50: "--waiting", p99: "--garbage",
  };
  const colour = (name) => ROOT.getPropertyValue(name).trim();

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
      const options = {
        ...this.size(place),
        series: [{}, ...names.map((name, at) => ({
          label: shown[at], stroke: colour(COLOURS[name]), width: 1.5, spanGaps: true, points: { show: columns[0].length < 3 },
        }))],
        axes: [axis, { ...axis, size: 60 }],
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
