"use strict";
// The slider and the button change the list of steps; the script of the page draws.
(() => {
  const slider = document.getElementById("step");
  const steps = document.querySelector("select[data-choice=condition]");
  const button = document.getElementById("play");
  const reach = document.getElementById("reach");
  let timer = null;

  function show(step) {
    steps.selectedIndex = step;
    steps.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  }

  function advance() {
    const next = steps.selectedIndex + 1;
    if (next < steps.length) show(next);
    if (next >= steps.length - 1) pause();
  }

  steps.addEventListener("change", () => {
    slider.value = steps.selectedIndex;
    slider.setAttribute("aria-valuetext", steps.value);
    reach.textContent = steps.value;
  });
  slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
  button.addEventListener("click", () => {
    if (timer !== null) return pause();
    if (steps.selectedIndex === steps.length - 1) show(0);
    button.textContent = "Pause";
    timer = setInterval(advance, Number(button.dataset.pause));
  });
  document.querySelector(".player").hidden = false;
})();
