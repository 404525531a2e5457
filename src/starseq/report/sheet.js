"use strict";
// The sheet of `starseq complete --review`. Texts come from the page's attributes and go back as text, never as markup.
(() => {
  const sheet = document.getElementById("sheet");
  const gaps = [...sheet.querySelectorAll(".gap")];
  const key = `starseq review ${sheet.dataset.name}`;
  const status = document.getElementById("done");
  let decisions = new Map(); // gap -> {decision: accept, correct or open, text}
  const history = []; // gaps in the order of their decisions
  let now = -1;
  let isKept = true;

  const article = (gap) => gap.closest("article");
  const mark = (gap) => article(gap).querySelectorAll(".line mark")[gap.dataset.gap];
  const where = (gap) => article(gap).querySelector(`.where[data-gap="${gap.dataset.gap}"]`);
  const originals = new Map(gaps.map((gap) => [gap, mark(gap).textContent]));

  function show(gap) {
    const made = decisions.get(gap);
    const typed = gap.querySelector(".typed");
    if (made) gap.dataset.decision = made.decision;
    else delete gap.dataset.decision;
    for (const button of gap.querySelectorAll(".guess"))
      button.classList.toggle("chosen", made?.decision === "accept" && button.dataset.text === made.text);
    typed.classList.toggle("chosen", made?.decision === "correct" && made.text !== "");
    if (made?.decision === "correct" && made.text) typed.value = made.text;
    gap.querySelector(".nothing").classList.toggle("chosen", made?.decision === "correct" && !made.text);
    gap.querySelector(".leave").classList.toggle("chosen", made?.decision === "open");
    const state = { accept: "accepted", open: "open", correct: made?.text ? "corrected" : "nothing missing" };
    gap.querySelector(".state").textContent = made ? state[made.decision] : "";
    const shown = mark(gap);
    const isFilled = made ? made.decision !== "open" : gap.dataset.written === "yes";
    shown.textContent = !made ? originals.get(gap) : made.decision === "open" ? "*" : made.text;
    shown.className = isFilled ? "in" : "open";
    shown.classList.toggle("decided", made !== undefined && made.decision !== "open");
    shown.classList.toggle("now", gaps[now] === gap);
  }

  function count() {
    status.textContent = `${decisions.size} of ${gaps.length} decided` +
      (isKept ? "" : "; this browser keeps nothing: save before you close the page");
  }

  function record() {
    const rows = new Map();
    for (const gap of gaps) {
      const made = decisions.get(gap);
      if (!made) continue;
      const line = Number(article(gap).dataset.line);
      if (!rows.has(line)) rows.set(line, { line, gaps: [] });
      rows.get(line).gaps.push({ position: Number(gap.dataset.position), ...made });
    }
    return { manifest: sheet.dataset.manifest, rows: [...rows.values()] };
  }

  function restore(saved) {
    if (saved?.manifest !== sheet.dataset.manifest || !Array.isArray(saved.rows)) return false;
    const found = new Map();
    for (const row of saved.rows)
      for (const { position, decision, text } of row.gaps)
        if (["accept", "correct", "open"].includes(decision))
          found.set(`${row.line} ${position}`, { decision, text: String(text ?? "") });
    decisions = new Map();
    for (const gap of gaps) {
      const made = found.get(`${article(gap).dataset.line} ${gap.dataset.position}`);
      if (made) decisions.set(gap, made);
    }
    gaps.forEach(show);
    count();
    return true;
  }

  function keep() {
    try {
      localStorage.setItem(key, JSON.stringify(record()));
    } catch {
      isKept = false;
    }
    count();
  }

  function kept() {
    try {
      restore(JSON.parse(localStorage.getItem(key)));
    } catch {
      // nothing was kept, or the browser does not let us see it
    }
  }

  function decide(gap, decision, text = "") {
    decisions.set(gap, { decision, text });
    history.push(gap);
    keep();
    show(gap);
    const place = gaps.indexOf(gap);
    const next = gaps.findIndex((other, index) => index > place && !decisions.has(other));
    go(next >= 0 ? next : Math.min(place + 1, gaps.length - 1));
  }

  function undo(current) {
    const gap = history.pop() ?? current;
    decisions.delete(gap);
    gap.querySelector(".typed").value = gap.querySelector(".typed").defaultValue;
    keep();
    show(gap);
    go(gaps.indexOf(gap));
  }

  function go(index, scrolls = true) {
    if (!gaps[index]) return;
    const before = gaps[now];
    now = index;
    for (const gap of [before, gaps[now]]) {
      if (!gap) continue;
      gap.classList.toggle("now", gap === gaps[now]);
      where(gap)?.classList.toggle("now", gap === gaps[now]);
      show(gap);
    }
    const gap = gaps[now];
    gap.focus({ preventScroll: true });
    if (scrolls) article(gap).scrollIntoView({ block: article(gap).offsetHeight > innerHeight * 0.7 ? "start" : "center" });
    const frame = where(gap);
    if (frame) {
      const strip = frame.closest(".strip");
      strip.scrollLeft = frame.offsetLeft - strip.clientWidth / 2;
    }
  }

  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(record(), null, 1) + "\n"], { type: "application/json" }));
    link.download = sheet.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    status.textContent = `${sheet.dataset.file}: saved, with ${decisions.size} of ${gaps.length} decided`;
  }

  function play() {
    const sound = article(gaps[Math.max(now, 0)]).querySelector("audio");
    if (!sound) return;
    if (!sound.paused) return sound.pause();
    const left = where(gaps[Math.max(now, 0)])?.style.left;
    if (left && sound.duration) sound.currentTime = Math.max(0, (parseFloat(left) / 100) * sound.duration - 1);
    sound.play();
  }

  for (const gap of gaps) {
    const typed = gap.querySelector(".typed");
    for (const button of gap.querySelectorAll(".guess"))
      button.addEventListener("click", () => decide(gap, "accept", button.dataset.text));
    gap.querySelector(".leave").addEventListener("click", () => decide(gap, "open"));
    gap.querySelector(".nothing").addEventListener("click", () => decide(gap, "correct", ""));
    typed.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") {
        event.preventDefault();
        if (typed.value) decide(gap, "correct", typed.value);
        else go(gaps.indexOf(gap));
      } else if (event.key === "Escape") {
        const made = decisions.get(gap);
        typed.value = made?.decision === "correct" ? made.text : typed.defaultValue;
        go(gaps.indexOf(gap));
      }
      event.stopPropagation();
    });
    typed.addEventListener("change", () => {
      // left with the mouse or Tab: what was typed counts
      const made = decisions.get(gap);
      if (!typed.value || (made?.decision === "correct" && made.text === typed.value)) return;
      decisions.set(gap, { decision: "correct", text: typed.value });
      history.push(gap);
      keep();
      show(gap);
    });
  }

  const verbs = {
    Enter: (gap) => guess(gap, 0), 1: (gap) => guess(gap, 0), 2: (gap) => guess(gap, 1), 3: (gap) => guess(gap, 2),
    4: (gap) => guess(gap, 3), c: (gap) => gap.querySelector(".typed").select(), x: (gap) => decide(gap, "open"),
    n: (gap) => decide(gap, "correct", ""),
    u: undo, j: () => go(Math.min(now + 1, gaps.length - 1)), k: () => go(Math.max(now - 1, 0)),
    ArrowDown: () => go(Math.min(now + 1, gaps.length - 1)), ArrowUp: () => go(Math.max(now - 1, 0)), p: play, s: save,
  };

  function guess(gap, number) {
    const button = gap.querySelectorAll(".guess")[number];
    if (button) decide(gap, "accept", button.dataset.text);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("button, label, audio") && (event.key === "Enter" || event.key === " ")) return;
    const verb = Object.hasOwn(verbs, event.key) ? verbs[event.key] : null;
    if (!verb || !gaps.length) return;
    event.preventDefault();
    verb(gaps[Math.max(now, 0)]);
  });
  document.getElementById("save").addEventListener("click", save);
  document.getElementById("open").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    let isOurs = false;
    try {
      isOurs = restore(JSON.parse(await file.text()));
    } catch {
      // not JSON, or not of the form that `record` makes
    }
    if (isOurs) keep();
    else status.textContent = `${file.name}: it was not saved by this sheet`;
  });
  addEventListener("storage", (event) => event.key === key && kept()); // the same sheet in another tab
  addEventListener("beforeunload", (event) => {
    if (!isKept && decisions.size) event.preventDefault();
  });

  kept();
  count();
  go(Math.max(0, gaps.findIndex((gap) => !decisions.has(gap))), decisions.size > 0);
})();
