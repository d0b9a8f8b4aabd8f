"use strict";
(() => {
  const all = (selector, place = document) => [...place.querySelectorAll(selector)];

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  // The value of a line at a place, both as shares of the chart's box.
  const scale = (text) => {
    const [low, high, kind, ...title] = text.split(" ");
    const map = kind === "log" ? Math.log10 : (value) => value, back = kind === "log" ? (value) => 10 ** value : map;
    const [first, last] = [map(Number(low)), map(Number(high))];
    return { title: title.join(" "), value: (share) => back(first + share * (last - first)) };
  };
  const points = (path) => {
    path.read ??= (() => {
      const found = [];
      let x = 0, y = 0;
      for (const [, command, numbers] of path.getAttribute("d").matchAll(/([MLHV])([^MLHVh]*)/g)) {
        const [first, second] = numbers.trim().split(" ").map(Number);
        if (command === "H") x = first;
        else if (command === "V") y = first;
        else [x, y] = [first, second];
        if (command !== "H") found.push([x, y]);
      }
      return found;
    })();
    return path.read;
  };
  const short = (value) => String(Number(value.toPrecision(3)));

  const read = (plot, share) => {
    const x = scale(plot.dataset.x), y = scale(plot.dataset.y);
    plot.share = Math.min(Math.max(share, 0), 1);
    const said = all("path[data-name]", plot).map((path) => {
      const near = points(path).reduce((best, point) =>
        Math.abs(point[0] - 1000 * plot.share) <= Math.abs(best[0] - 1000 * plot.share) ? point : best, [1e9, 0]);
      return `${path.dataset.name}: ${short(y.value(1 - near[1] / 1000))}`;
    });
    plot.querySelector(".reading").textContent =
      `${[`${short(x.value(plot.share))} ${x.title}`, ...said].join(" · ")} ${y.title}`;
    let cursor = plot.querySelector(".cursor");
    if (!cursor) {
      cursor = document.createElement("div");
      cursor.className = "cursor";
      plot.querySelector(".box").append(cursor);
    }
    cursor.style.left = `${100 * plot.share}%`;
  };
  const leave = (plot) => {
    plot.querySelector(".cursor")?.remove();
    plot.querySelector(".reading").textContent = scale(plot.dataset.x).title;
  };
  const readable = (place) => {
    for (const plot of all(".plot", place)) {
      const box = plot.querySelector(".box");
      box.addEventListener("pointermove", (event) => {
        const { left, width } = box.getBoundingClientRect();
        read(plot, (event.clientX - left) / width);
      });
      box.addEventListener("pointerleave", () => leave(plot));
      plot.addEventListener("blur", () => leave(plot));
      plot.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -0.01, ArrowRight: 0.01, Home: -1, End: 1 }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        read(plot, (plot.share ?? 0.5) + step);
      });
    }
    for (const select of all("figure select", place)) {
      select.addEventListener("change", () => all(".run", select.closest("figure")).forEach((run, position) => {
        run.hidden = position !== select.selectedIndex;
      }));
    }
  };

  const draw = async (test) => {
    const rest = test.querySelector(".rest");
    if (!rest || rest.dataset.drawn) return;
    rest.dataset.drawn = "begun";
    rest.innerHTML = await unpack(rest.dataset.packed);
    readable(rest);
    rest.dataset.drawn = "yes";
  };

  const tests = all("details.test");
  for (const test of tests) test.addEventListener("toggle", () => test.open && draw(test));
  const follow = () => {
    const linked = document.getElementById(location.hash.slice(1));
    if (linked?.matches("details")) linked.open = true;
  };
  addEventListener("hashchange", follow);
  follow();
  for (const test of tests) if (test.open) draw(test);
  for (const place of all(".search")) readable(place);

  let verdict = "";
  const search = document.getElementById("search");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const test of tests) {
      const text = test.querySelector("summary").textContent.toLowerCase();
      test.hidden = (verdict && test.dataset.verdict !== verdict) || !words.every((word) => text.includes(word));
    }
    for (const group of all(".group")) group.hidden = !group.querySelector("details.test:not([hidden])");
    document.getElementById("none").hidden = !tests.length || tests.some((test) => !test.hidden);
  };
  search.addEventListener("input", filter);
  for (const button of all(".filter")) {
    button.addEventListener("click", () => {
      verdict = button.dataset.verdict;
      for (const other of all(".filter")) other.setAttribute("aria-pressed", String(other === button));
      filter();
    });
  }

  const copy = document.getElementById("copy");
  copy?.addEventListener("click", async () => {
    const text = JSON.parse(document.getElementById("csv").textContent);
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page from a file may not use the clipboard's own interface
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
      copy.focus();
    }
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy as CSV"; }, 2000);
  });

  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("scheme").addEventListener("click", () => {
    const now = document.documentElement.dataset.scheme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.scheme = now === "dark" ? "light" : "dark";
  });
})();
