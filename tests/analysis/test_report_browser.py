"""The report in a real headless browser: no sideways scrolling; a desk, a phone, the dark, and print."""

import json
import re
import shutil
import subprocess

import pytest

from pyro_bnn.analysis.report import write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: install Debian's package chromium to see the report laid out"
)

PROBE = """
<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest("svg, .scroll, pre"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className);
  const css = getComputedStyle(document.body);
  const broken = [...document.images].filter(i => !i.complete || !i.naturalWidth).length;
  const flat = [...document.querySelectorAll("svg.chart")].filter(s => s.getBoundingClientRect().height < 100).length;
  const text = [...document.querySelectorAll("svg.chart text")].map(t => t.getBoundingClientRect().height);
  const out = {width: innerWidth, scroll: document.documentElement.scrollWidth, wide, broken, flat,
    paper: css.backgroundColor, ink: css.color, columns: new Set([...document.querySelectorAll(".grid .card")]
    .map(c => c.getBoundingClientRect().left)).size, smallest: Math.min(...text),
    resources: performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).map(r => r.name)};
  const pre = document.createElement("pre"); pre.id = "probe"; pre.textContent = JSON.stringify(out);
  document.body.append(pre);
});
</script>
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    import torch

    from tests.analysis.conftest import classifier

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("report")
    case = classifier((1, 12, 12), n=60, recipe={"name": "a-recipe-with-quite-a-long-name-of-its-own"})
    history = [{"epoch": e, "nll": 2.0 / e, "kl": 5.0 - e, "val_nll": 2.5 / e} for e in (1, 2, 3)]
    options = {"history": history, "recipe_toml": "name = 'x'\n" * 30, "num_samples": 5}
    return write_report(folder, case.posterior, (case.x, case.y), (case.x, case.y), **options)


def browse(folder, url, *arguments):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", *arguments, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def probe(report, *arguments, size=(1200, 900)):
    page = report.with_name("probe.html")
    page.write_text(report.read_text().replace("</body>", f"{PROBE}</body>"))
    dump = browse(report.parent, page.as_uri(), f"--window-size={size[0]},{size[1]}", "--dump-dom", *arguments)
    found = re.search(r'<pre id="probe">(.*?)</pre>', dump, re.S)
    assert found, dump[-2000:]
    return json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))


def brightness(colour):
    return sum(int(c) for c in re.findall(r"\d+", colour)[:3]) / (3 * 255)


def test_on_a_desk(report):
    found = probe(report)
    assert found["broken"] == 0
    assert found["flat"] == 0
    assert found["wide"] == []
    assert found["resources"] == []
    assert found["columns"] == 3
    assert brightness(found["paper"]) > 0.9
    assert brightness(found["ink"]) < 0.2


def test_on_a_phone(report):
    found = probe(report, size=(500, 900))  # the narrowest window that a headless browser opens
    assert found["scroll"] <= found["width"]
    assert found["wide"] == []
    assert found["columns"] == 1
    assert found["smallest"] >= 11  # px: figures keep their text readable


def test_in_a_narrow_frame(report):
    """A phone of 360 px, as a frame inside a page."""
    page = report.with_name("probe.html")
    page.write_text(report.read_text().replace("</body>", f"{PROBE}</body>"))
    frame = report.with_name("frame.html")
    frame.write_text(
        '<iframe id="f" src="probe.html" width="360" height="800"></iframe><script>addEventListener("load", () => '
        '{const p = document.createElement("pre"); p.id = "probe"; p.textContent = '
        'document.getElementById("f").contentDocument.getElementById("probe").textContent; document.body.append(p)})'
        "</script>"
    )
    dump = browse(report.parent, frame.as_uri(), "--allow-file-access-from-files", "--dump-dom")
    found = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dump, re.S)[1].replace("&gt;", ">"))
    assert found["width"] == 360
    assert found["scroll"] <= 360
    assert found["wide"] == []
    assert found["smallest"] >= 9


def test_in_the_dark(report):
    found = probe(report, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    assert brightness(found["paper"]) < 0.15
    assert brightness(found["ink"]) > 0.8


def test_in_print(report):
    pdf = report.with_name("report.pdf")
    browse(report.parent, report.as_uri(), "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= pages <= 12


def test_words_of_a_posterior_are_words(tmp_path):
    """What a hostile author writes into names runs nothing, loads nothing, and turns no other words."""
    import torch

    from tests.analysis.conftest import classifier

    torch.manual_seed(0)
    evil = """</title></pre><img src=x onerror="document.title='owned'"><script>document.title='owned'</script>\u202e"""
    case = classifier((1, 12, 12), n=60, recipe={"name": evil, "description": evil, "source": evil})
    names = [f"{evil}{k}" for k in range(len(case.posterior.info["class_names"]))]
    case.posterior.info["class_names"] = names
    history = [{"epoch": e, "nll": 2.0 / e, "kl": 5.0 - e} for e in (1, 2)]
    options = {"history": history, "recipe_toml": evil, "command": evil, "results": {"machine": evil}, "num_samples": 5}
    report = write_report(tmp_path, case.posterior, (case.x, case.y), (case.x, case.y), **options)
    assert "\u202e" not in report.read_text()
    assert "\\u202e" in report.read_text()
    dump = browse(tmp_path, report.as_uri(), "--dump-dom")
    assert "<title>owned" not in dump
    assert "<script" not in dump
    assert "onerror=&quot;" not in re.sub(r"<(?!img)", "", dump) or '<img src="x"' not in dump
    found = probe(report)
    assert found["broken"] == 0
    assert found["resources"] == []
