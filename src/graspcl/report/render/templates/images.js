"use strict";
// Draws figures one after the other, and leaves each as a data: address.
(async () => {
  const { figures, kind } = JSON.parse(document.getElementById("figures").textContent);
  for (const figure of figures) {
    const { width, height } = figure.layout;
    const image = await Plotly.toImage(figure, { format: kind, width, height, scale: kind === "png" ? 2 : 1 });
    const line = document.createElement("pre");
    line.textContent = image;
    document.body.append(line);
  }
})();
