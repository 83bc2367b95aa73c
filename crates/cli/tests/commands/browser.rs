//! The HTML report in a real browser: headless Chromium, driven through its DevTools protocol over a pipe.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::{
    CodePlace, Fault, FaultClass, Object, ObjectId, PageIndex, Stack, StackId, Thread, ThreadIndex, Trace,
    TraceFacts,
};
use prepage_testing::{Need, has};
use prepage_trace::parquet::write_trace;
use serde_json::{Value, json};

use crate::support::text;

/// Chromium with one page.
struct Browser {
    child: Child,
    _settings: tempfile::TempDir,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    events: Vec<Value>,
}

impl Browser {
    /// `None`, counted as a skip, where there is no Chromium.
    fn start() -> Option<Self> {
        // Chromium reads commands from descriptor 3 and writes answers to 4.
        let script = "exec chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-pipe \
                      --window-size=1280,1000 --user-data-dir=\"$0\" about:blank \
                      3<&0 4>&1 </dev/null >/dev/null 2>&1";
        if !has(Need::Tool("chromium".into())) {
            return None;
        }
        let settings = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(settings.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut browser =
            Self { child, _settings: settings, to, from, session: None, calls: 0, events: Vec::new() };
        let targets = browser.call("Target.getTargets", &json!({}));
        let targets = targets["targetInfos"].as_array().expect("targets").clone();
        let page = targets.iter().find(|target| target["type"] == "page").expect("a page");
        let attached =
            browser.call("Target.attachToTarget", &json!({ "targetId": page["targetId"], "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("chromium listens");
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).expect("chromium answers");
            assert_eq!(answer.pop(), Some(0), "chromium ended");
            let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Opens the report in file `path` and waits until it has drawn.
    fn open(&mut self, path: &Path) {
        self.open_at(path, "");
    }

    /// The same with a fragment, `#…`, in the address.
    fn open_at(&mut self, path: &Path, fragment: &str) {
        self.call("Page.navigate", &json!({ "url": format!("file://{}{fragment}", path.display()) }));
        let deadline = Instant::now() + Duration::from_secs(60);
        // While the page changes, there may be no document to ask.
        while self.evaluate("document?.documentElement?.dataset?.drawn ?? ''") != "true" {
            assert!(Instant::now() < deadline, "the page does not draw: {:?}", self.events);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// How many different pixels the canvas in `parent` has.
    fn colours(&mut self, parent: &str) -> u64 {
        let script = format!(
            "(() => {{ const canvas = document.querySelector('#{parent} canvas');
                const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                return new Set(new Uint32Array(data.buffer)).size; }})()"
        );
        self.evaluate(&script).as_u64().expect("a number")
    }

    fn picture(&mut self, parent: &str) -> String {
        let script = format!("document.querySelector('#{parent} canvas').toDataURL()");
        self.evaluate(&script).as_str().expect("a picture").to_owned()
    }

    /// What the page says where the mouse points at the plot in `parent`, at this share of its width: of the topmost thing there.
    fn told(&mut self, parent: &str, share: f64) -> String {
        let script = format!(
            "(async () => {{ const [over, tip] = ['#{parent} .u-over', '#tip'].map((at) => document.querySelector(at));
                over.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                const {{ left, top, width, height }} = over.getBoundingClientRect();
                const move = (kind, x, y) => over.dispatchEvent(new MouseEvent(kind,
                    {{ clientX: left + {share} * width + x, clientY: top + y, bubbles: true }}));
                move('mouseenter', 0, 1);
                // Where two cells meet, it may be in the other.
                for (const x of [0, -3, 3]) for (let y = 1; y < height; y += 3) {{
                    move('mousemove', x, y);
                    if (!tip.hidden) return tip.textContent;
                }}
                return ''; }})()"
        );
        self.evaluate(&script).as_str().expect("text").to_owned()
    }

    /// Zooms the plot in `parent` by the wheel, around this share of its range. Returns the numbers at its axis then, and at which share of
    /// its width that place is.
    fn wheel(&mut self, parent: &str, share: f64, times: u32) -> (Vec<String>, f64) {
        let script = format!(
            "(async () => {{ const over = document.querySelector('#{parent} .u-over');
                const {{ left, top, width }} = over.getBoundingClientRect();
                let [from, to] = [0, 1];
                const turn = () => {{
                    // The mouse is at whole pixels.
                    const clientX = Math.round(left + ({share} - from) / (to - from) * width);
                    const around = from + (clientX - left) / width * (to - from);
                    [from, to] = [around - (around - from) * 0.75, around + (to - around) * 0.75];
                    over.dispatchEvent(new WheelEvent('wheel', {{ deltaY: -1, ctrlKey: true, shiftKey: true,
                        clientX, clientY: top + 1, cancelable: true }}));
                }};
                const settled = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                for (let turns = 1; turns < {times}; turns++) turn();
                await settled();
                const [numbers, context] = [new Map(), CanvasRenderingContext2D.prototype], {{ fillText }} = context;
                context.fillText = function (text, x, y) {{ numbers.set(x, text); fillText.call(this, text, x, y); }};
                turn();
                await settled();
                context.fillText = fillText;
                return [[...numbers.values()].filter((text) => /^[0-9.]+[kMG]?$/.test(text)),
                    ({share} - from) / (to - from)]; }})()"
        );
        let shown = self.evaluate(&script);
        let numbers = shown[0].as_array().expect("a list").iter();
        (
            numbers.map(|text| text.as_str().expect("text").to_owned()).collect(),
            shown[1].as_f64().expect("a number"),
        )
    }

    /// Moves the mouse over the plot in `parent`, from one share of its width to another, with the button held.
    fn drag(&mut self, parent: &str, from: f64, to: f64) {
        let script = format!(
            "(() => {{ const over = document.querySelector('#{parent} .u-over');
                over.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const box = over.getBoundingClientRect();
                return [box.left, box.top + box.height / 2, box.width]; }})()"
        );
        let place = self.evaluate(&script);
        let [left, y, width] = [0, 1, 2].map(|at| place[at].as_f64().expect("a number"));
        let mut mouse = |kind: &str, share: f64| {
            let held = i32::from(kind != "mouseReleased");
            let params = json!({ "type": kind, "x": left + share * width, "y": y, "button": "left",
                                 "buttons": held, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &params);
        };
        mouse("mousePressed", from);
        for step in 1..=5 {
            mouse("mouseMoved", from + (to - from) * f64::from(step) / 5.0);
        }
        mouse("mouseReleased", to);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends by itself when the pipe closes; without that, it is ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trace() -> Trace {
    let facts = TraceFacts {
        command: vec!["cc".into(), "<b>.c".into()],
        kernel: "6.18.0".into(),
        duration_ns: 20_000_000,
        lost: 2,
        lost_by_second: vec![(0, 2)],
        ..TraceFacts::default()
    };
    let objects =
        vec![Object::new("/usr/lib/one.so", Some((1, 1))), Object::new("/usr/lib/two.so", Some((1, 2)))];
    let threads = vec![Thread { pid: 7, tid: 7, comm: "cc".into() }];
    let place = |object, offset| CodePlace { object: Some(ObjectId(object)), offset };
    let stacks =
        vec![Stack { places: vec![place(0, 16), place(1, 16)] }, Stack { places: vec![place(1, 64)] }];
    let fault = |at: u64| Fault {
        cost_ns: Some(if at.is_multiple_of(9) { 90_000 + at * 40 } else { 700 + at * 3 }),
        object: Some(ObjectId((at % 2) as u32)),
        page: Some(PageIndex(at * 37 % 4000)),
        stack: Some(StackId::new((at % 2) as u32)),
        ..Fault::new(
            at * 5000,
            ThreadIndex(0),
            (at * 37 % 4000) << 12,
            FaultClass::ALL[if at.is_multiple_of(9) { 0 } else { 2 }],
        )
    };
    Trace { facts, objects, threads, stacks, faults: (0..4000).map(fault).collect() }
}

#[test]
fn the_page_draws_zooms_and_asks_for_nothing() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (path, page) = (dir.path().join("t.parquet"), dir.path().join("t.html"));
    write_trace(&path, &trace()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    let output =
        command.arg("report").arg(&path).arg("--html").arg(&page).output().expect("prepage-tools runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    browser.call(
        "Network.emulateNetworkConditions",
        &json!({ "offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 }),
    );
    browser.open(&page);
    for plot in ["waiting", "order", "cost", "heat", "distribution", "flame"] {
        assert!(browser.colours(plot) > 8, "{plot} is blank");
    }
    let whole = ["order", "cost", "heat"].map(|plot| browser.picture(plot));
    browser.drag("order", 0.25, 0.5);
    let zoomed = ["order", "cost", "heat"].map(|plot| browser.picture(plot));
    assert!(whole[0] != zoomed[0], "dragging zooms");
    assert!(whole[1] != zoomed[1], "the other plot by number zooms with it");
    assert!(whole[2] == zoomed[2], "the plot by time does not");
    let over = "document.querySelector('#order .u-over')";
    browser.evaluate(&format!("{over}.dispatchEvent(new MouseEvent('dblclick', {{ bubbles: true }}))"));
    assert!(browser.picture("cost") == whole[1], "a double click shows all again");
    browser.evaluate("document.querySelector('#legend button').click()");
    assert!(browser.picture("cost") != whole[1], "a class can be hidden");
    let choices = browser.evaluate("document.querySelectorAll('#place option').length");
    assert_eq!(choices, 4, "all files, all memory, two files");
    browser.evaluate(
        "{ const s = document.querySelector('#place'); s.value = 2; s.dispatchEvent(new Event('change')) }",
    );
    assert!(browser.picture("order") != whole[0], "one file can be chosen");

    let urls: Vec<&Value> = browser
        .events
        .iter()
        .filter(|event| event["method"] == "Network.requestWillBeSent")
        .map(|event| &event["params"]["request"]["url"])
        .collect();
    assert_eq!(urls, [&Value::from(format!("file://{}", page.display()))]);
    let trouble = |event: &&Value| {
        matches!(event["method"].as_str(), Some("Runtime.exceptionThrown" | "Log.entryAdded"))
    };
    assert_eq!(browser.events.iter().filter(trouble).collect::<Vec<_>>(), Vec::<&Value>::new());
}

#[test]
fn every_class_is_drawn_though_only_some_of_its_faults_are() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (path, page) = (dir.path().join("t.parquet"), dir.path().join("t.html"));
    const EACH: u64 = 3000;
    let classes = FaultClass::ALL.len() as u64;
    let mut trace = trace();
    let fault = |at: u64| Fault {
        cost_ns: Some(1000 + at % classes * 1000),
        object: Some(ObjectId(0)),
        page: Some(PageIndex(at % classes * 100)),
        ..Fault::new(at * 100, ThreadIndex(0), (at % classes) << 20, FaultClass::ALL[(at % classes) as usize])
    };
    trace.faults = (0..EACH * classes).map(fault).collect();
    write_trace(&path, &trace).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    let limit = (EACH * classes / 10).to_string();
    let arguments = ["report", "--points", &limit, "--html"];
    let output = command.args(arguments).arg(&page).arg(&path).output().expect("prepage-tools runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    browser.open_at(&page, "#memory");
    let place = browser.evaluate("document.querySelector('#place').selectedOptions[0].textContent");
    assert_eq!(place, "all memory, by address");
    let drawn =
        browser.evaluate("[...document.querySelectorAll('#legend button')].map((b) => b.dataset.drawn)");
    let drawn: Vec<u64> = drawn
        .as_array()
        .expect("a list")
        .iter()
        .map(|n| n.as_str().expect("text").parse().expect("a number"))
        .collect();
    assert_eq!(drawn.len() as u64, classes);
    // One in ten, by chance: 300, with a deviation of 16.
    assert!(drawn.iter().all(|drawn| drawn.abs_diff(EACH / 10) < 6 * 17), "{drawn:?}");
    // Pixels of each class's colour in both plots of single faults.
    for plot in ["order", "cost"] {
        let script = format!(
            "(() => {{ const canvas = document.querySelector('#{plot} canvas');
                const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                const seen = new Map();
                for (const pixel of new Uint32Array(data.buffer)) seen.set(pixel, (seen.get(pixel) ?? 0) + 1);
                const one = document.createElement('canvas').getContext('2d');
                return [...document.querySelectorAll('#legend .swatch')].map((swatch) => {{
                    one.fillStyle = getComputedStyle(swatch).backgroundColor;
                    one.fillRect(0, 0, 1, 1);
                    return seen.get(new Uint32Array(one.getImageData(0, 0, 1, 1).data.buffer)[0]) ?? 0; }}); }})()"
        );
        let pixels = browser.evaluate(&script);
        let pixels = pixels.as_array().expect("a list").clone();
        assert_eq!(pixels.len() as u64, classes);
        assert!(pixels.iter().all(|pixels| pixels.as_u64().expect("a number") > 300), "{plot}: {pixels:?}");
    }
    let note = browser.evaluate("document.body.innerText");
    assert!(note.as_str().expect("text").contains("one in 10 disk faults"), "{note}");
}

#[test]
fn a_sample_stands_for_all_the_faults_it_was_drawn_from() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (path, page) = (dir.path().join("t.parquet"), dir.path().join("t.html"));
    const CACHED: u64 = 3000;
    let mut trace = trace();
    let fault = |at: u64| Fault {
        object: Some(ObjectId(0)),
        page: Some(PageIndex(5)),
        ..Fault::new(at, ThreadIndex(0), 0x5000, [FaultClass::Cached, FaultClass::ZeroFill][at as usize % 2])
    };
    // In one cell of the heat map.
    trace.faults = (0..2 * CACHED).map(fault).collect();
    write_trace(&path, &trace).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    let output =
        command.args(["report", "--class", "cached", "--points", "300", "--html"]).args([&page, &path]);
    let output = output.output().expect("prepage-tools runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    browser.open(&page);
    let scale = browser.evaluate("document.querySelector('#heat-scale').textContent");
    let scale = scale.as_str().expect("text").replace(',', "");
    assert!(scale.ends_with("3000 faults in a cell"), "{scale}");
}

#[test]
fn an_hour_is_shown_exactly_where_it_is_zoomed_and_its_losses_are_seen() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (path, page) = (dir.path().join("t.parquet"), dir.path().join("t.html"));
    let mut trace = trace();
    trace.facts.duration_ns = 3_600_000_000_000;
    (trace.facts.lost, trace.facts.lost_by_second) = (7, vec![(1807, 5), (1809, 2)]);
    for (at, fault) in trace.faults.iter_mut().enumerate() {
        fault.start_ns = at as u64 * 900_000_000;
    }
    // The slowest, and the one that the mouse is to point at.
    let (slowest, at_ms) = (&mut trace.faults[2008], "1807345.678");
    (slowest.start_ns, slowest.cost_ns) = (1_807_345_678_000, Some(900_000_000));
    write_trace(&path, &trace).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    let output =
        command.arg("report").arg(&path).arg("--html").arg(&page).output().expect("prepage-tools runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    browser.open(&page);
    let tables = browser.evaluate("document.body.innerText");
    assert!(tables.as_str().expect("text").contains(at_ms), "the table of the slowest has it");

    let pixels = browser.evaluate(
        "(() => { const canvas = document.querySelector('#waiting canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const one = document.createElement('canvas').getContext('2d');
            one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--lost').trim();
            one.fillRect(0, 0, 1, 1);
            const lost = new Uint32Array(one.getImageData(0, 0, 1, 1).data.buffer)[0];
            return new Uint32Array(data.buffer).filter((pixel) => pixel === lost).length; })()",
    );
    assert!(pixels.as_u64().expect("a number") >= 5, "losses are seen: {pixels}");
    let of_slice = browser.told("waiting", 1801.0 / 3600.0);
    assert!(of_slice.contains("1800000 to 1815000 ms"), "{of_slice}");
    assert!(of_slice.contains("7 records lost in these seconds"), "{of_slice}");
    let of_fault = browser.told("cost", 2008.0 / 3999.0);
    // The page has times in 2^32 parts of the whole.
    assert!(of_fault.contains("at 1807345.67"), "{of_fault}");
    // From an hour to a second, and from 4000 faults to some.
    for (plot, share, turns) in [("heat", 1_807_345.678 / 3_600_000.0, 28), ("order", 0.5, 20)] {
        let (numbers, share) = browser.wheel(plot, share, turns);
        let different: BTreeSet<_> = numbers.iter().collect();
        assert!(numbers.len() > 2 && different.len() == numbers.len(), "{plot}: {numbers:?}");
        if plot == "heat" {
            let of_cell = browser.told(plot, share);
            assert!(of_cell.contains("\nat 18073"), "{share} {numbers:?} {of_cell}");
        }
    }
}

#[test]
fn without_javascript_the_tables_are_there() {
    let Some(mut browser) = Browser::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (path, page) = (dir.path().join("t.parquet"), dir.path().join("t.html"));
    write_trace(&path, &trace()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.arg("report").arg(&path).arg("--html").arg(&page).output().expect("prepage-tools runs");
    browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.call("Page.navigate", &json!({ "url": format!("file://{}", page.display()) }));
    let deadline = Instant::now() + Duration::from_secs(60);
    let seen = loop {
        let seen = browser.evaluate("document.body?.innerText ?? ''").as_str().unwrap_or_default().to_owned();
        if seen.contains("pages of 4096 bytes") {
            break seen;
        }
        assert!(Instant::now() < deadline, "{seen}");
        std::thread::sleep(Duration::from_millis(50));
    };
    for expected in [
        "cc '<b>.c'",
        "Faults by file",
        "/usr/lib/two.so",
        "The faults that cost most",
        "2 records lost",
        "Linux 6.18.0",
    ] {
        assert!(seen.contains(expected), "{expected} is missing: {seen}");
    }
    assert!(!seen.contains("Order of the faults"), "empty plots are not shown");
}
