"""Headless Chromium for tests: what a page shows, logs and requests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import tempfile

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-dev-shm-usage",
)  # fmt: skip


def why_not() -> str | None:
    """Return why no page can be opened here; None if one can."""
    if PROGRAM is None or DRIVER is None:
        return "chromium and chromedriver are not installed"
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    return None


@contextlib.contextmanager
def browser():
    """Start a browser with its own profile, which logs the console and the network."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            yield Page(driver)
        finally:
            driver.quit()


# The page is loaded, and its script has drawn all figures for this width, colour scheme and medium.
DRAWN = (
    "document.readyState === 'complete' && document.documentElement.dataset.drawn === [innerWidth,"
    " matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light',"
    " document.documentElement.dataset.print ?? 'screen'].join(' ')"
)


class Page:
    """One tab."""

    def __init__(self, driver):
        self.driver = driver

    def look(self, width=1280, height=900, dark=False):
        """Set the size and colour scheme of the screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        if self.run("return document.getElementById('report-data') !== null"):
            self.settle()

    def open(self, address):
        """Open a page and wait until all figures are drawn; forget what was logged before."""
        self.complaints(), self.requests()
        self.driver.get(address)
        self.settle()

    def settle(self):
        """Wait until all figures are drawn for the current screen."""
        self.until(DRAWN)

    def until(self, condition, seconds=60):
        """Wait until a condition in JavaScript holds, also over a reload of the page."""
        from selenium.common.exceptions import JavascriptException
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.02, ignored_exceptions=[JavascriptException])
        return wait.until(lambda driver: driver.execute_script(f"return {condition}"), f"never true: {condition}")

    def run(self, script, *arguments):
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self):
        """Return errors and warnings of the console since the last call."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """Return the requested addresses since the last call."""
        messages = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]

    def screenshot(self, path, whole=True):
        """Save a picture of the whole page, or of the screen."""
        import base64

        options = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            height = self.run("return document.documentElement.scrollHeight")
            width = self.run("return document.documentElement.clientWidth")
            options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(shot["data"]))


# Text whose contrast with what lies behind it is below WCAG AA: 4.5, or 3 for large text.
FAINT = """
const channel = (value) => { const v = value / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const parse = (text) => {
  const n = (text.match(/[\\d.]+/g) || []).map(Number);
  return n.length < 3 ? null : [n[0], n[1], n[2], n[3] ?? 1];
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const behind = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const ground = at instanceof SVGElement ? null : parse(getComputedStyle(at).backgroundColor);
    if (ground && ground[3] > 0) layers.push(ground);
    if (ground && ground[3] === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
};
const faint = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement;
  const text = walk.currentNode.textContent.trim();
  if (!text || element.closest("script, style, noscript, .heatmap-label, [hidden]")) continue;
  if (!element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  let colour = parse(element instanceof SVGElement ? style.fill : style.color);
  if (!colour || style.visibility === "hidden") continue;
  const ground = behind(element);
  const alpha = colour[3] * Number(element instanceof SVGElement ? style.fillOpacity : 1);
  colour = over([...colour.slice(0, 3), alpha], ground);
  const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
  const enough = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
  if (contrast < enough) faint.push([text.slice(0, 40), Math.round(contrast * 100) / 100]);
}
return faint;
"""

# Elements that stick out of the page to the right, but for what scrolls inside its own box.
WIDE = """
const limit = document.documentElement.clientWidth;
const whole = document.documentElement.scrollWidth;
const found = whole > limit ? [`page: ${whole} > ${limit}`] : [];
const apart = ".scroll, .sections, svg, .plotly-notifier, .modebar, #js-plotly-tester, script, style";
for (const element of document.querySelectorAll("body *")) {
  if (element.closest(apart)) continue;
  const box = element.getBoundingClientRect();
  if (box.width && box.right > limit + 1) found.push(`${element.tagName}.${element.className}: ${box.right}`);
}
return found;
"""
