"use strict";
(() => {
  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  let loading = null;
  const plotly = () => {
    loading ??= unpack(document.getElementById("plotly").textContent).then((source) => {
      const script = document.createElement("script");
      script.textContent = source;
      document.head.append(script);
    });
    return loading;
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (number) => css(`--side-${number % 8}`);
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

  const axis = (title, more = {}) => ({
    title: { text: title, font: { size: 12 } }, gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false,
    automargin: true, ...more,
  });
  const layout = (height, more) => ({
    height, margin: { l: 56, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--text"), size: 12, family: "system-ui, sans-serif" }, hovermode: "closest",
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" }, ...more,
  });

  // 1, 2 and 5 of each decade, written out: Plotly's own log ticks leave the power of ten out.
  const logTicks = (values) => {
    const known = values.filter((value) => value > 0), marks = [];
    if (!known.length) return {};
    const low = Math.min(...known), high = Math.max(...known);
    if (high / low < 2) return { type: "linear" };
    const digits = high / low > 300 ? [1] : high / low > 4 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const digit of digits) marks.push(Number((digit * 10 ** power).toPrecision(2)));
    }
    const range = [Math.log10(low * 0.9), Math.log10(high * 1.1)];
    return { type: "log", tickvals: marks, ticktext: marks.map(String), range };
  };

  const figure = (place, caption, note, wide) => {
    const box = document.createElement("figure");
    const head = document.createElement("figcaption");
    const chart = document.createElement("div");
    if (wide) box.className = "wide";
    head.append(caption);
    if (note) {
      const small = document.createElement("small");
      small.textContent = note;
      head.append(small);
    }
    chart.className = "chart";
    box.append(head, chart);
    place.append(box);
    return { head, chart };
  };

  // Probabilities of the quantiles that a page holds: the same as PROBABILITIES in charts.py.
  const PROBABILITIES = [...Array(50).keys()].map((step) => step / 50).concat(0.99, 0.995, 0.999, 1);
  const FAMILIES = { ttft: "Time to first token", itl: "Gaps between chunks (ITL)" };

  const drawDistribution = (place, family, sides) => {
    if (!sides.some((side) => side.n)) return;
    const { chart } = figure(place, FAMILIES[family], "share of values up to x; thin: each run");
    const traces = sides.flatMap((side, number) => {
      const line = (x, pooled) => ({
        x, y: PROBABILITIES.map((share) => 100 * share), type: "scatter", mode: "lines", name: `${side.side} (n = ${side.n}${side.of ? `, of ${side.of}` : ""})`,
        legendgroup: side.side, showlegend: pooled, hoverinfo: pooled ? undefined : "skip",
        line: { color: colour(number), width: pooled ? 2.2 : 0.8, shape: "linear" }, opacity: pooled ? 1 : 0.45,
        hovertemplate: pooled ? `${side.side}: %{y:.3~f} % up to %{x:.4~g} ms<extra></extra>` : undefined,
      });
      return [...side.runs.map((run) => line(run, false)), line(side.pooled, true)];
    });
    const scale = logTicks(sides.flatMap((side) => side.pooled));
    Plotly.newPlot(chart, traces, layout(300, {
      xaxis: axis(scale.type === "log" ? "ms (logarithmic)" : "ms", scale),
      yaxis: axis("%", { range: [0, 101] }),
    }), CONFIG);
  };

  const DASHES = ["solid", "dot", "dash", "dashdot"]; // in the words of STYLES in series.py

  // Rows of one timeline, top to bottom: gaps, requests, then whatever was sampled.
  const rowsOf = (chosen) => {
    const rows = [
      {
        title: "gap, ms", log: true,
        lines: chosen.flatMap(({ side, number, run }) => [
          { side, number, name: "largest", x: run.gaps.time_s, y: run.gaps.largest, width: 1.2 },
          { side, number, name: "median", x: run.gaps.time_s, y: run.gaps.median, width: 1.2, dash: "dot" },
        ].slice(0, chosen.length > 3 ? 1 : 2)),
      },
      {
        title: "requests in flight",
        lines: chosen.map(({ side, number, run }) => ({
          side, number, name: "in flight", x: run.in_flight.time_s, y: run.in_flight.requests, width: 1.2, step: true,
        })),
      },
    ];
    for (const { side, number, run } of chosen) {
      for (const sampled of run.telemetry) {
        let row = rows.find((one) => one.title === sampled.title);
        if (!row) rows.push(row = { title: sampled.title, lines: [] });
        for (const line of sampled.lines) row.lines.push({
          side, number, name: line.name, x: line.time_s, y: line.values, width: 1.3,
          dash: DASHES[line.style % DASHES.length],
        });
      }
    }
    return rows.filter((row) => row.lines.some((line) => line.x.length));
  };

  const drawRun = (chart, timelines, position) => {
    const chosen = timelines.flatMap(({ side, runs }, number) => runs[position] ? [{ side, number, run: runs[position] }] : []);
    const rows = rowsOf(chosen);
    const more = { xaxis: axis("s after the first intended send", { anchor: `y${rows.length > 1 ? rows.length : ""}`, rangemode: "tozero" }) };
    const traces = [];
    rows.forEach((row, at) => {
      const name = at ? `y${at + 1}` : "y", gap = 26 / (150 * rows.length);
      const height = (1 - gap * (rows.length - 1)) / rows.length, top = 1 - at * (height + gap);
      more[`yaxis${at ? at + 1 : ""}`] = axis("", {
        domain: [Math.max(0, top - height), top],
        ...(row.log ? logTicks(row.lines.flatMap((line) => line.y)) : { rangemode: "tozero" }), nticks: 4,
      });
      (more.annotations ??= []).push({
        text: row.title, x: 0, xref: "paper", xanchor: "left", y: top, yref: "paper", yanchor: "bottom", showarrow: false,
        font: { size: 12, color: css("--quiet") },
      });
      for (const line of row.lines) {
        traces.push({
          x: line.x, y: line.y, yaxis: name, type: "scatter", mode: "lines", name: `${line.side} ${line.name}`,
          showlegend: at === 0, legendgroup: `${at}${line.side}${line.name}`,
          line: { color: colour(line.number), width: line.width, dash: line.dash, shape: line.step ? "hv" : "linear" },
          hovertemplate: `${line.side} ${line.name}: %{y:.4~g} at %{x:.4~g} s<extra></extra>`,
        });
      }
    });
    Plotly.react(chart, traces, layout(110 + 150 * rows.length, {
      ...more, margin: { l: 56, r: 12, t: 24, b: 44 }, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 1, xanchor: "right" },
    }), CONFIG);
  };

  const drawTimeline = (place, timelines) => {
    const most = Math.max(0, ...timelines.map(({ runs }) => runs.length));
    if (!timelines.some(({ runs }) => runs.some((run) => run.in_flight.time_s.length || run.telemetry.length))) return;
    const { head, chart } = figure(place, "Timeline", "equal seeds: the same requests at the same times", true);
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Run");
    for (let position = 0; position < most; position++) {
      const seed = timelines.map(({ runs }) => runs[position]).find(Boolean).seed;
      select.append(new Option(`run ${position + 1}, seed ${seed}`, position));
    }
    select.addEventListener("change", () => drawRun(chart, timelines, Number(select.value)));
    head.append(select);
    drawRun(chart, timelines, 0);
  };

  const drawHistory = (place, history) => {
    const { chart } = figure(place, `Baseline of ${history.metric}`, `${history.side}; a dot a run`);
    const points = (values, x, name, number) => ({
      x: values.map(() => x), y: values, name, type: "scatter", mode: "markers", showlegend: false,
      marker: { color: colour(number), size: 8, opacity: 0.75, symbol: number ? "diamond" : "circle" },
      hovertemplate: `${name}: %{y:.5~g} ${history.unit}<extra></extra>`,
    });
    const traces = history.sessions.map((session, position) => points(session.values, position, session.label, 0));
    traces.push(points(history.today, history.sessions.length, "this run", 1));
    const labels = [...history.sessions.map((session) => session.label.replace(" ", "<br>")), "this run"];
    Plotly.newPlot(chart, traces, layout(240, {
      xaxis: axis("", { tickvals: labels.map((_, position) => position), ticktext: labels, range: [-0.5, labels.length - 0.5] }),
      yaxis: axis(history.unit),
    }), CONFIG);
  };

  const draw = async (test) => {
    const place = test.querySelector(".charts"), rest = test.querySelector(".rest");
    if (!place || place.dataset.drawn) return;
    place.dataset.drawn = "begun";
    const [content] = await Promise.all([unpack(rest.dataset.packed).then(JSON.parse), plotly()]);
    place.replaceChildren();
    for (const [family, sides] of Object.entries(content.distributions ?? {})) drawDistribution(place, family, sides);
    if (content.timelines) drawTimeline(place, content.timelines);
    for (const history of content.history) drawHistory(place, history);
    if (!rest.querySelector("details")) rest.innerHTML = content.more;
    place.dataset.drawn = "yes";
  };

  const redraw = () => {
    for (const place of document.querySelectorAll(".charts[data-drawn]")) {
      delete place.dataset.drawn;
      if (place.closest("details").open) draw(place.closest("details"));
    }
  };

  const tests = [...document.querySelectorAll("details.test")];
  for (const test of tests) test.addEventListener("toggle", () => test.open && draw(test));
  const linked = location.hash && document.getElementById(location.hash.slice(1));
  if (linked) linked.open = true;
  for (const test of tests) if (test.open) draw(test);

  let verdict = "";
  const search = document.getElementById("search");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const test of tests) {
      const text = test.querySelector("summary").textContent.toLowerCase();
      test.hidden = (verdict && test.dataset.verdict !== verdict) || !words.every((word) => text.includes(word));
      left += test.hidden ? 0 : 1;
    }
    document.getElementById("none").hidden = left > 0 || !tests.length;
  };
  search.addEventListener("input", filter);
  for (const button of document.querySelectorAll(".filter")) {
    button.addEventListener("click", () => {
      verdict = button.dataset.verdict;
      for (const other of document.querySelectorAll(".filter")) other.setAttribute("aria-pressed", String(other === button));
      filter();
    });
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("scheme").addEventListener("click", () => {
    const now = document.documentElement.dataset.scheme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.scheme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
})();
