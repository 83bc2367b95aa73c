// Puts the page together: classes to show or hide, the place to look at, tables to sort.

function setUpLegend(faults) {
  const legend = document.getElementById("legend");
  classes.forEach((entry, kind) => {
    if (entry.count === 0) return;
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.dataset.drawn = faults.ofClass[kind].length;
    button.title = `${button.dataset.drawn} drawn one by one`;
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = `var(--class-${entry.name})`;
    button.append(swatch, `${entry.name} ${entry.count}`);
    button.addEventListener("click", () => {
      visible[kind] = !visible[kind];
      button.setAttribute("aria-pressed", String(visible[kind]));
      redrawAll();
    });
    legend.append(button);
  });
}

function setUpPlace(choices, choose) {
  const select = document.getElementById("place");
  const groups = new Map();
  choices.forEach(({ name, group }, at) => {
    let parent = select;
    if (group) {
      parent = groups.get(group) ?? Object.assign(document.createElement("optgroup"), { label: group });
      if (!groups.has(group)) select.append(parent);
      groups.set(group, parent);
    }
    parent.append(new Option(name, at));
  });
  select.addEventListener("change", () => choose(choices[Number(select.value)]));
}

function sortable(table) {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      table.tHead.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const number = heading.classList.contains("number");
      const key = (row) => row.cells[column].textContent;
      const compare = (a, b) => (number ? (Number(key(a)) || 0) - (Number(key(b)) || 0) : key(a).localeCompare(key(b)));
      body.append(...[...body.rows].sort((a, b) => (down ? -compare(a, b) : compare(a, b))));
    });
  });
}

async function start() {
  document.querySelectorAll("table").forEach(sortable);
  const faults = await unpacked(data.points);
  document.getElementById("plots").hidden = false;
  setUpLegend(faults);
  const choices = places(faults);
  // `report.html#memory` begins with memory by address.
  const first = location.hash === "#memory" ? choices.findIndex((choice) => choice.memory) : 0;
  const place = { layout: choices[first].make() };
  waitingPlot();
  const { order, heat } = faultPlots(faults, place);
  distributionPlot();
  setUpFlame();
  setUpPlace(choices, (choice) => {
    place.layout = choice.make();
    retell(order);
    retell(heat);
  });
  document.getElementById("place").value = first;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    redrawAll();
    drawFlame();
  });
  document.documentElement.dataset.drawn = "true";
}

start().catch((error) => {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = `The plots could not be drawn (${error.message}); the tables below say the same in numbers.`;
  document.querySelector("header").after(note);
});
