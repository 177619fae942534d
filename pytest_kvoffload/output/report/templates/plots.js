(function () {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const line = style.getPropertyValue("--line").trim();
    for (const doc of Bokeh.documents) {
      for (const model of doc._all_models.values()) {
        if (/Axis$/.test(model.type)) {
          model.setv({
            axis_label_text_color: text, major_label_text_color: text, axis_line_color: text,
            major_tick_line_color: text, minor_tick_line_color: line, axis_label_text_font_style: "normal",
          });
        } else if (model.type === "Grid") {
          model.setv({ grid_line_color: line });
        }
      }
    }
  }

  // Bokeh draws into shadow trees that say nothing to a screen reader: name the picture and the buttons there.
  function speak(plot) {
    let named = false;
    function visit(root) {
      for (const part of root.querySelectorAll("*")) {
        if (part.tagName === "CANVAS") {
          if (named) {
            part.setAttribute("aria-hidden", "true");
          } else {
            part.setAttribute("role", "img");
            part.setAttribute("aria-label", plot.dataset.title + ". " + plot.dataset.words);
            named = true;
          }
        } else if (part.classList.contains("bk-events")) {
          part.setAttribute("role", "group");
          part.setAttribute("aria-label", plot.dataset.title);
        } else if (part.tabIndex >= 0 && part.title) {
          part.setAttribute("role", "button");
          part.setAttribute("aria-label", part.title);
        }
        if (part.shadowRoot) visit(part.shadowRoot);
      }
    }
    visit(plot);
  }

  const items = JSON.parse(document.getElementById("items").textContent);
  Promise.all(items.map(function (item) { return Bokeh.embed.embed_item(item, item.target_id); })).then(function () {
    paint();
    document.querySelectorAll(".plot").forEach(speak);
    dark.addEventListener("change", paint);
    document.documentElement.dataset.drawn = String(items.length);
  });
})();
