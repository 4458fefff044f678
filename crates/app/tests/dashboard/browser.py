"""Drives the dashboard in Chromium: every page and action, with the keyboard, in both themes, on a phone.

It ends with an error if a page logs an error, asks another host, runs a script of a client, or has a serious problem of
accessibility. Everything waits for the effect that it asserts; nothing sleeps for a fixed time.
"""

import http.client
import json
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

PLAN = json.loads(sys.argv[1])
ADMIN = PLAN["admin"]
SHOTS = Path(PLAN["screenshots"])
# Texts of clients that would run as a script, if a page treated them as HTML.
HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    "\"><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "';window.hacked=1//",
    "</textarea><iframe srcdoc='<script>parent.hacked=1</script>'>",
]
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
# A page waits for a slow machine; a correct one never needs it.
expect.set_options(timeout=60_000)
PAGES = ["overview", "limits", "money", "gateways", "queues", "activity", "audit"]
complaints: list[str] = []


def call(url: str, body: object = None, token: str | None = None) -> object:
    """Sends a request to the service; returns the decoded answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    return json.loads(text or b"null")


def allow(user: str, model: str = "gpt-4", tenant: str = "acme") -> None:
    body = {"dimensions": {"userId": user, "modelId": model, "tenantId": tenant}, "cost": {"inputTokens": 900, "outputTokens": 300}}
    call(f"{PLAN['http']}/v1/acquire", body)


def traffic(stop: threading.Event) -> None:
    """Sends requests of a noisy user, of quiet ones, and of hostile ones, until it is stopped."""
    number = 0
    while not stop.is_set():
        number += 1
        allow("noisy", "gpt-4", "acme")
        allow(f"user-{number % 20}", ["gpt-4", "claude", "gemini"][number % 3], f"tenant-{number % 5}")
        if number % 5 == 0:
            text = HOSTILE[number // 5 % len(HOSTILE)]
            allow(text, text, text)
        stop.wait(0.05)


def hold(user: str, usd: str, tenant: str = "acme") -> None:
    """Makes a reservation that nobody settles."""
    body = {"dimensions": {"userId": user, "modelId": "gpt-4", "tenantId": tenant}, "cost": {"usd": usd}, "hold": "1s"}
    answer = call(f"{PLAN['http']}/v1/acquire", body)
    assert answer["allowed"], answer


def gateway_traffic(stop: threading.Event) -> None:
    while not stop.is_set():
        call(f"{PLAN['gateway']}/graphql", {})
        stop.wait(0.03)


def watch(page: Page, origin: str) -> None:
    """Collects errors of a page, and requests to other hosts."""
    page.on("console", lambda message: message.type == "error" and complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def requested(request) -> None:
        if not request.url.startswith((origin, "data:")):
            complaints.append(f"request to another host: {request.url}")

    page.on("request", requested)


def open_page(page: Page, name: str, admin: str = ADMIN) -> None:
    page.goto(f"{admin}/#/{name}")
    expect(page.locator("main h1")).to_be_visible()


def accessible(page: Page, where: str) -> None:
    """Runs axe-core on the page. It is injected by the debugger, so the policy of the page stays in force for the page itself."""
    session = page.context.new_cdp_session(page)
    session.send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(Path(PLAN["axe"]).read_text() + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    for violation in found["violations"]:
        if violation["impact"] in ("serious", "critical"):
            nodes = [node["html"][:160] for node in violation["nodes"][:3]]
            complaints.append(f"axe, {where}: {violation['id']}: {violation['help']}: {nodes}")


def panel(page: Page, title: str):
    """Returns the panel with this title."""
    return page.locator("section.panel", has=page.get_by_role("heading", name=title, exact=True))


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=False)


def no_overflow(page: Page, where: str) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        complaints.append(f"{where}: {wide} px wider than the window")


def confirm(page: Page, button: str, reason: str) -> None:
    """Fills in the reason of an open dialog and confirms it."""
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=button).click()
    expect(dialog).to_have_count(0)


def test_pages(page: Page) -> None:
    """Every page shows its data."""
    open_page(page, "overview")
    expect(page.get_by_role("region", exact=True, name="Decisions by rule")).to_contain_text("USER_MODEL")
    expect(page.locator(".tile", has_text="Denied").first).not_to_contain_text("–")
    expect(page.locator(".problem").first).to_be_visible()
    open_page(page, "limits")
    expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text("noisy")
    expect(page.get_by_role("region", exact=True, name="Closest to the limit")).to_contain_text("USER_MODEL")
    expect(page.get_by_role("region", exact=True, name="Rules")).to_contain_text("Bursts and the steady use of one model by one user")
    for tab in ["Tenants", "Models", "API keys", "Users"]:
        page.get_by_role("group", name="Dimension").first.get_by_role("button", name=tab).click()
    page.get_by_role("group", name="Ranking").get_by_role("button", name="Requests").click()
    expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text("user-")
    open_page(page, "money")
    expect(page.get_by_role("region", exact=True, name="Budgets")).to_contain_text("USER_BUDGET")
    open_page(page, "gateways")
    expect(page.locator("main")).to_contain_text("vendor / graphql")
    expect(page.locator("main")).to_contain_text("of 25 per second")
    open_page(page, "queues")
    expect(page.get_by_role("region", exact=True, name="Queues")).to_contain_text("mail")
    expect(page.get_by_role("region", exact=True, name="Providers")).to_contain_text("mailer")
    open_page(page, "activity")
    expect(page.get_by_role("region", exact=True, name="Decisions")).to_contain_text("USER_MODEL")
    open_page(page, "audit")


def test_live(page: Page) -> None:
    """Numbers change without a reload, and the tail can be filtered and paused."""
    open_page(page, "overview")
    total = page.locator(".tile", has_text="Allowed").first
    before = total.inner_text()
    expect(total).not_to_have_text(before, use_inner_text=True)
    page.get_by_role("button", name="24 h").click()
    expect(page.get_by_role("img", name="Decisions per second")).to_be_visible()
    open_page(page, "activity")
    rows = page.locator(".tail tbody tr")
    first = rows.first.inner_text()
    expect(rows.first).not_to_have_text(first, use_inner_text=True)
    page.get_by_role("group", name="Result").get_by_role("button", name="Denied").click()
    expect(page.locator(".tail .badge.green")).to_have_count(0)
    page.get_by_label("Filter decisions").fill("userId=noisy")
    expect(rows.first).to_contain_text("noisy")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    held = rows.first.inner_text()
    page.evaluate("new Promise((done) => { let left = 2; const s = new EventSource('/v1/dashboard/events'); s.addEventListener('tick', () => { left -= 1; if (!left) { s.close(); done(); } }); })")
    assert rows.first.inner_text() == held, "the tail is paused"


def test_actions(page: Page) -> None:
    """Looks up a caller, and overrides, pauses, bans and resets it."""
    open_page(page, "limits")
    page.get_by_label("userId").fill("target")
    page.get_by_label("modelId").fill("gpt-4")
    page.get_by_label("tenantId").fill("acme")
    page.get_by_role("button", name="Look up").click()
    for _ in range(3):
        allow("target")
    usage = page.locator(".usage-row", has_text="USER_MODEL").last
    expect(usage).to_contain_text("3 / 60")
    expect(panel(page, "Explain")).to_contain_text("would be allowed")
    page.get_by_role("button", name="Reset", exact=True).click()
    page.get_by_label("Rule").select_option("USER_MODEL")
    confirm(page, "Reset", "ticket 1")
    expect(usage).to_contain_text("0 / 60")
    page.get_by_role("button", name="Override", exact=True).click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Limit, such as").fill("nonsense")
    dialog.get_by_label("Reason").fill("ticket 2")
    dialog.get_by_role("button", name="Set the limit").click()
    # The answer is a 400 that names the mistake; the browser logs it, and the dialog shows it.
    expect(dialog.get_by_role("alert")).to_contain_text("limit")
    complaints[:] = [text for text in complaints if "400" not in text]
    dialog.get_by_label("Limit, such as").fill("77/min")
    dialog.get_by_role("button", name="Set the limit").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".usage-row", has_text="USER_MODEL").first).to_contain_text("/ 77")
    page.get_by_role("button", name="Pause", exact=True).click()
    confirm(page, "Pause", HOSTILE[0])
    expect(panel(page, "Explain")).to_contain_text("would be denied")
    page.get_by_role("button", name="Ban", exact=True).click()
    confirm(page, "Ban", "ticket 4")
    shoot(page, "caller")
    open_page(page, "limits")
    overrides = page.get_by_role("region", exact=True, name="Overrides")
    expect(overrides).to_contain_text("ticket 4")
    expect(overrides).to_contain_text("banned")
    for left in (2, 1, 0):
        overrides.get_by_role("button", name="Remove").first.click()
        confirm(page, "Remove", "resolved")
        expect(page.get_by_role("region", exact=True, name="Overrides").get_by_role("button", name="Remove")).to_have_count(left)
    open_page(page, "audit")
    actions = page.get_by_role("region", exact=True, name="Actions")
    for text in ["ticket 1", "ticket 2", HOSTILE[0], "ticket 4", "resolved", "override removed", "reset"]:
        expect(actions).to_contain_text(text)


def test_reservations(page: Page) -> None:
    """Reservations that nobody settled are listed with age, caller, rule and amount, settled and given back."""
    hold("crashed-1", "0.20")
    hold("crashed-2", "0.30")
    hold(HOSTILE[0], "0.10", HOSTILE[1])
    open_page(page, "money")
    name = "Reservations that nobody settled"
    listed = page.get_by_role("region", exact=True, name=name)
    for text in ["crashed-1", "crashed-2", HOSTILE[0], "USER_BUDGET", "$0.20"]:
        expect(listed).to_contain_text(text)
    listed.scroll_into_view_if_needed()
    shoot(page, "reservations")
    row = listed.locator("tr", has_text="crashed-1")
    row.get_by_role("button", name="Settle").click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("USER_BUDGET")
    dialog.get_by_label("Dollars").fill("much")
    dialog.get_by_label("Reason").fill("invoice 7")
    dialog.get_by_role("button", name="Settle").click()
    # The answer is a 400 that names the mistake; the browser logs it, and the dialog shows it.
    expect(dialog.get_by_role("alert")).to_contain_text("cost.usd")
    complaints[:] = [text for text in complaints if "400" not in text]
    dialog.get_by_label("Dollars").fill("0.05")
    shoot(page, "settle")
    dialog.get_by_role("button", name="Settle").click()
    expect(dialog).to_have_count(0)
    expect(listed).not_to_contain_text("crashed-1")
    listed.locator("tr", has_text="crashed-2").get_by_role("button", name="Give back").click()
    confirm(page, "Give it back", HOSTILE[4])
    expect(listed).not_to_contain_text("crashed-2")
    for user, spent in [("crashed-1", 0.05), ("crashed-2", 0)]:
        usage = call(f"{ADMIN}/v1/usage", {"dimensions": {"userId": user, "modelId": "gpt-4", "tenantId": "acme"}})
        budget = [scope for scope in usage["scopes"] if scope["name"] == "USER_BUDGET"]
        assert budget[0]["current"] == spent, budget
    open_page(page, "audit")
    actions = page.get_by_role("region", exact=True, name="Actions")
    for text in ["reservation settled", "invoice 7", "reservation cancelled", HOSTILE[4]]:
        expect(actions).to_contain_text(text)


def test_pause(page: Page) -> None:
    """A route that the upstream asked to pause shows until when and why, and the announced limits."""
    call(f"{PLAN['gateway']}/paused")
    call(f"{PLAN['gateway']}/hostile")
    open_page(page, "gateways")
    route = panel(page, "vendor / paused")
    expect(route).to_contain_text("closed")
    expect(route).to_contain_text("the upstream answered status 429, retry-after: 300")
    expect(route.get_by_role("region", name="Announced limits")).to_contain_text("60")
    shoot(page, "pause")
    # A text of the upstream that would run as a script.
    expect(panel(page, "vendor / hostile")).to_contain_text("<img src=x onerror=window.hacked=1>")


def test_many(page: Page) -> None:
    """Ten thousand keys and a hundred thousand dead letters stay fluid."""
    connection = http.client.HTTPConnection(PLAN["http"].removeprefix("http://"))
    for number in range(10_000):
        dimensions = {"userId": f"many-{number}", "modelId": "gpt-4", "tenantId": f"tenant-{number % 5}"}
        connection.request("POST", "/v1/acquire", json.dumps({"dimensions": dimensions}), {"content-type": "application/json"})
        assert connection.getresponse().read(), "an answer"
    connection.close()
    open_page(page, "limits")
    expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text("noisy")
    fluid(page, "10,000 keys")
    bulk = HOSTILE[0]
    dead_letters(bulk, 100_000)
    open_page(page, "queues")
    queues = page.get_by_role("region", exact=True, name="Queues")
    expect(queues.locator("tr", has_text=bulk)).to_contain_text("100,000")
    page.get_by_label("Queue", exact=True).select_option(bulk)
    letters = page.get_by_role("region", exact=True, name="Dead letters")
    expect(letters.locator("tbody tr")).to_have_count(100)
    expect(letters).to_contain_text(HOSTILE[2])
    expect(panel(page, "Dead letters")).to_contain_text("100 shown of 100,000")
    fluid(page, "100,000 dead letters")
    page.get_by_role("button", name="Delete all that match").click()
    expect(page.locator("dialog[open]")).to_contain_text(f"100,000 dead letters of {bulk} match")
    page.keyboard.press("Escape")


def dead_letters(queue: str, count: int) -> None:
    """Makes dead letters in a queue that only clients of the queue API use: one by the API, the others as its copies in the file."""
    address = f"{PLAN['http']}/v1/queues/{urllib.parse.quote(queue, safe='')}"
    call(f"{address}/send", {"body": {"text": HOSTILE[1]}, "type": HOSTILE[2]})
    message = call(f"{address}/receive", {"wait": "20s"})["messages"][0]
    call(f"{address}/dead-letter", {"handle": message["handle"], "error": {"message": HOSTILE[2], "stack": HOSTILE[3]}})
    with sqlite3.connect(PLAN["queue"], timeout=30) as file:
        names = "queue, priority, ready_at, leased, fence, returns, due"
        of_queue = "(SELECT id FROM queue WHERE dead = 1 AND name = ?)"
        first = file.execute(f"SELECT id FROM dead_letter WHERE queue = {of_queue}", (f"{queue}-dlq",)).fetchone()[0]
        numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
        file.execute(f"{numbers} INSERT INTO dead_letter (id, {names}) SELECT 1000000 + n, {names} FROM dead_letter, numbers WHERE id = ?", (count - 1, first))
        file.execute(f"""{numbers} INSERT INTO dead_letter_content (id, envelope, content_type, headers, body)
            SELECT 1000000 + n, json_set(envelope, '$.job', 'bulk-' || n), content_type, headers, body
            FROM dead_letter_content, numbers WHERE id = ?""", (count - 1, first))


def fluid(page: Page, where: str) -> None:
    """Asserts that a page draws while live data arrives: no gap between two frames is long."""
    gaps = page.evaluate("""new Promise((done) => {
        const gaps = []; const first = performance.now(); let before = first;
        const frame = (now) => { gaps.push(now - before); before = now; if (now - first < 3000) requestAnimationFrame(frame); else done(gaps); };
        requestAnimationFrame(frame); })""")
    gaps.sort()
    print(f"{where}: {len(gaps)} frames in 3 s, longest gap {gaps[-1]:.0f} ms", flush=True)
    if gaps[-1] > 1000 or len(gaps) < 10:
        complaints.append(f"{where}: the page stalls for {gaps[-1]:.0f} ms")


def test_reload(page: Page) -> None:
    """A reload shows what changed; a broken file is rejected, and the page shows why."""
    config = Path(PLAN["config"])
    good = config.read_text()
    open_page(page, "activity")
    config.write_text(good.replace("20000/h", "15000/h", 1))
    page.get_by_role("button", name="Reload now").click()
    expect(panel(page, "Reloads")).to_contain_text("TENANT: 20000/h changed to 15000/h, tighter")
    config.write_text(good + "\nnonsense: 1\n")
    page.get_by_role("button", name="Reload now").click()
    expect(panel(page, "Reloads")).to_contain_text("nonsense")
    complaints[:] = [text for text in complaints if "422" not in text]
    config.write_text(good)
    page.get_by_role("button", name="Reload now").click()
    expect(panel(page, "Reloads").locator(".badge").first).to_contain_text("version")


def test_dead_letters(page: Page) -> None:
    """Dead letters are filtered, looked at, replayed and deleted, after a dry run."""
    open_page(page, "queues")
    expect(page.get_by_label("Queue", exact=True)).to_have_value("mail-dead")
    letters = page.get_by_role("region", exact=True, name="Dead letters")
    expect(letters.locator("tbody tr")).to_have_count(12)
    expect(letters).to_contain_text("<img src=x onerror=alert(1)>")
    letters.locator("tbody button").first.click()
    expect(page.locator("dialog[open] pre")).to_contain_text("<script>alert(1)</script>")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    shoot(page, "queues")
    for at in (0, 1):
        letters.get_by_role("checkbox").nth(at).check()
    page.get_by_role("button", name="Delete 2 selected").click()
    expect(page.locator("dialog[open]")).to_contain_text("2 dead letters of mail-dead match")
    confirm(page, "Delete 2", "not needed")
    expect(letters.locator("tbody tr")).to_have_count(10)
    page.get_by_label("Error contains").fill("no such error")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.locator("main")).to_contain_text("no dead letter matches")
    page.get_by_label("Error contains").fill("")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(letters.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Replay all that match").click()
    confirm(page, "Replay 10", "fixed")
    open_page(page, "audit")
    expect(page.get_by_role("region", exact=True, name="Actions")).to_contain_text("dead letters replayed")
    job = call(f"{ADMIN}/v1/dashboard/dead-letters?queue=mail&max=1")
    deadline = time.monotonic() + 60
    while not job["letters"] and time.monotonic() < deadline:  # They fail again.
        job = call(f"{ADMIN}/v1/dashboard/dead-letters?queue=mail&max=1")
    open_page(page, "queues")
    page.get_by_label("Job id").last.fill(str(job["letters"][0]["job"]))
    page.get_by_role("button", name="Why?").click()
    expect(panel(page, "One job")).to_contain_text("dead")
    earlier = page.get_by_role("region", name="Earlier events of the job")
    expect(earlier).to_contain_text("in_work")


def test_keyboard(page: Page) -> None:
    """A page is reached, used and left without a mouse."""
    open_page(page, "overview")
    page.keyboard.press("Tab")
    focused = "document.activeElement.innerText.trim()"
    assert page.evaluate(focused).startswith("Skip to"), page.evaluate(focused)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "Limits":
            break
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Limits")
    page.get_by_label("userId").focus()
    page.keyboard.type("noisy")
    page.keyboard.press("Tab")
    page.keyboard.type("gpt-4")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Caller")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_enabled()
    page.get_by_role("button", name="Pause", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_be_visible()
    inside = page.evaluate("document.querySelector('dialog[open]').contains(document.activeElement)")
    assert inside, "the focus is in the dialog"
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_login(browser) -> None:
    """Tokens are needed, roles hold, and leaving ends the session."""
    secured = PLAN["secured"]
    context = browser.new_context()
    page = context.new_page()
    watch(page, secured)
    page.goto(f"{secured}/#/limits")
    page.get_by_label("Access token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown token")
    complaints[:] = [text for text in complaints if "401" not in text]
    accessible(page, "login")
    shoot(page, "login")
    page.get_by_label("Access token").fill("reader-token-of-the-browser-test")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Limits")
    assert not page.evaluate("document.cookie"), "scripts can't read the cookie"
    cookie = context.cookies()[0]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict", cookie
    page.goto(f"{secured}/#/caller?userId=ann&modelId=m")
    expect(panel(page, "Explain")).to_contain_text("would be allowed")
    expect(page.get_by_role("button", name="Ban")).to_have_count(0)
    refused = page.evaluate("""fetch('/v1/reset?all=true', {method: 'POST', headers: {'content-type': 'application/json'},
        body: '{"dimensions": {"userId": "ann", "modelId": "m"}}'}).then((answer) => answer.status)""")
    assert refused == 403, refused
    complaints[:] = [text for text in complaints if "403" not in text]
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    page.get_by_label("Access token").fill("operator-token-of-the-browser-test")
    page.keyboard.press("Enter")
    page.goto(f"{secured}/#/caller?userId=ann&modelId=m")
    page.get_by_role("button", name="Ban", exact=True).click()
    confirm(page, "Ban", "abuse")
    page.goto(f"{secured}/#/audit")
    expect(page.get_by_role("region", exact=True, name="Actions")).to_contain_text("operator")
    context.close()


def test_looks(browser) -> None:
    """Every page in both themes and on a phone: accessible, not wider than the window, and photographed."""
    for theme, width, height in [("light", 1360, 900), ("dark", 1360, 900), ("light", 320, 640)]:
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
        page = context.new_page()
        watch(page, ADMIN)
        for name in PAGES:
            open_page(page, name)
            if name == "overview":
                expect(page.get_by_role("region", exact=True, name="Decisions by rule")).to_contain_text("USER_MODEL")
            if name == "limits":
                expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text("noisy")
            if name == "activity":
                expect(page.locator(".tail tbody tr").nth(10)).to_be_attached()
            if name == "money":
                expect(page.get_by_role("region", exact=True, name="Reservations that nobody settled")).to_contain_text("USER_BUDGET")
            if name == "gateways":
                expect(page.locator("main")).to_contain_text("the upstream answered status 429")
            no_overflow(page, f"{name} at {width} px")
            if width > 320:
                accessible(page, f"{name}, {theme}")
            shoot(page, f"{name}-{theme}-{width}")
        page.get_by_role("button", name="theme").click()
        chosen = page.evaluate("document.documentElement.dataset.theme")
        assert chosen == ("light" if theme == "dark" else "dark"), chosen
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == chosen, "the choice is remembered"
        context.close()


def main() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(stop,), daemon=True) for work in (traffic, gateway_traffic)]
    for thread in threads:
        thread.start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        context = browser.new_context(viewport={"width": 1360, "height": 900})
        page = context.new_page()
        watch(page, ADMIN)
        for test in (test_pages, test_live, test_actions, test_reservations, test_pause, test_reload, test_dead_letters, test_many, test_keyboard):
            started = time.monotonic()
            test(page)
            print(f"{test.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        assert page.evaluate("window.hacked") is None, "a text of a client ran as a script"
        context.close()
        for test in (test_login, test_looks):
            started = time.monotonic()
            test(browser)
            print(f"{test.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        browser.close()
    stop.set()
    if complaints:
        sys.exit("\n".join(dict.fromkeys(complaints)))


main()
