"""Drives the dashboard in Chromium: every page and action, with the keyboard, in both themes, on a phone.

It ends with an error if a page logs an error, asks another host, runs a script of a client, or has a serious problem of
accessibility. Everything waits for the effect that it asserts; nothing sleeps for a fixed time.
"""

import contextlib
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

from playwright.sync_api import Error as PlaywrightError
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
API_KEY = "sk-secret-of-the-test"
PAGES = ["overview", "limits", "money", "gateways", "queues", "activity", "audit"]
complaints: list[str] = []
# Refusals that a test causes on purpose: the browser logs each once, with its status and path.
refusals: list[tuple[int, str]] = []
watched: list[Page] = []


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
    body = {"dimensions": {"userId": user, "modelId": model, "tenantId": tenant, "apiKey": API_KEY}, "cost": {"inputTokens": 900, "outputTokens": 300}}
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
    watched.append(page)

    def logged(message) -> None:
        if message.type != "error":
            return
        for refusal in refusals:
            status, path = refusal
            if f"status of {status} " in message.text and urllib.parse.urlsplit(message.location["url"]).path == path:
                refusals.remove(refusal)
                return
        complaints.append(f"console: {message.text} {message.location}")

    page.on("console", logged)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def requested(request) -> None:
        if not request.url.startswith((origin, "data:")):
            complaints.append(f"request to another host: {request.url}")

    page.on("request", requested)


def not_hacked(page: Page, where: str) -> None:
    """Asserts that no text of a client ran as a script. It is asked on every page, because a page that is left forgets it."""
    if page.evaluate("window.hacked ?? null") is not None:
        complaints.append(f"{where}: a text of a client ran as a script")


def open_page(page: Page, name: str, admin: str = ADMIN) -> None:
    if page.url.startswith(admin):
        not_hacked(page, page.url)
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
    page.get_by_role("group", name="Ranking").get_by_role("button", name="Requests").click()
    for tab, texts in [("Tenants", ["acme", "tenant-"]), ("Models", ["gpt-4", "claude", "gemini"]), ("Users", ["noisy", "user-"])]:
        page.get_by_role("group", name="Dimension").first.get_by_role("button", name=tab).click()
        for text in texts:
            expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text(text)
    page.get_by_role("group", name="Dimension").first.get_by_role("button", name="API keys").click()
    keys = page.get_by_role("region", exact=True, name="Callers")
    # Keys are shown as hashes, and never in full.
    expect(keys.locator("tbody tr").first).to_be_visible()
    expect(keys).not_to_contain_text(API_KEY)
    for tab, text in [("Users", "userId="), ("Tenants", "tenantId="), ("Models", "modelId="), ("All", "USER_MODEL")]:
        panel(page, "Closest to the limit").get_by_role("button", name=tab).click()
        closest = page.get_by_role("region", exact=True, name="Closest to the limit")
        expect(closest.locator("tbody tr").first).to_contain_text(text)
    open_page(page, "money")
    budgets = page.get_by_role("region", exact=True, name="Budgets")
    for tab, rule, other in [("Users", "USER_BUDGET", "TENANT_BUDGET"), ("Tenants", "TENANT_BUDGET", "USER_BUDGET"), ("Models", "MODEL_BUDGET", "USER_BUDGET")]:
        panel(page, "Budgets").get_by_role("button", name=tab).click()
        expect(budgets).to_contain_text(rule)
        expect(budgets).not_to_contain_text(other)
    panel(page, "Budgets").get_by_role("button", name="All").click()
    expect(budgets).to_contain_text("USER_BUDGET")
    # One user has spent all. Models run out in some hours at this pace.
    body = {"dimensions": {"userId": "spender", "modelId": "gpt-4", "tenantId": "acme"}, "cost": {"usd": "0.50"}}
    assert call(f"{PLAN['http']}/v1/acquire", body)["allowed"]
    expect(budgets.locator("tr", has_text="spender")).to_contain_text("used up")
    expect(budgets.locator("tr", has_text="modelId=gpt-4")).to_contain_text("in ")
    expect(page.locator(".tile", has_text="Reserved")).to_contain_text("$")
    expect(page.locator(".tile", has_text="Run out at this pace").locator(".value")).not_to_have_text("0")
    spent = budgets.locator("tbody tr td:nth-child(4)").all_inner_texts()
    amounts = [float(text.removeprefix("$").split(" ")[0].replace(",", "")) for text in spent]
    assert amounts == sorted(amounts, reverse=True), amounts
    open_page(page, "gateways")
    expect(page.locator("main")).to_contain_text("vendor / graphql")
    expect(panel(page, "vendor / graphql")).to_contain_text("of 25 per second")
    # The contract of a route with a limit per minute is drawn as well.
    expect(panel(page, "vendor / paused")).to_contain_text("of 10 per second")
    for route in ("graphql", "paused"):
        chart = panel(page, f"vendor / {route}").get_by_role("img", name="Requests to the upstream per second")
        expect(chart.locator("line.c-denied")).to_have_count(1)
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
    refusals.append((400, "/v1/overrides"))
    dialog.get_by_role("button", name="Set the limit").click()
    # The answer is a 400 that names the mistake; the browser logs it, and the dialog shows it.
    expect(dialog.get_by_role("alert")).to_contain_text("limit")
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
    unsettled = call(f"{ADMIN}/v1/reservations")["reservations"]
    ours = [one["id"] for one in unsettled if ["userId", "crashed-1"] in one["caller"]]
    settle = f"/v1/reservations/{ours[0]}/settle"
    row = listed.locator("tr", has_text="crashed-1")
    row.get_by_role("button", name="Settle").click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("USER_BUDGET")
    dialog.get_by_label("Dollars").fill("much")
    dialog.get_by_label("Reason").fill("invoice 7")
    refusals.append((400, settle))
    dialog.get_by_role("button", name="Settle").click()
    # The answer is a 400 that names the mistake; the browser logs it, and the dialog shows it.
    expect(dialog.get_by_role("alert")).to_contain_text("cost.usd")
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
    # For the documentation: some traffic, and no large load yet.
    open_page(page, "overview")
    expect(page.get_by_role("region", exact=True, name="Decisions by rule")).to_contain_text("TENANT_BUDGET")
    shoot(page, "overview")
    open_page(page, "limits")
    expect(page.get_by_role("region", exact=True, name="Callers")).to_contain_text("noisy")
    shoot(page, "limits")


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
    """Asserts that a page stays small, whatever it shows, and that it draws while live data arrives."""
    nodes, rows = page.evaluate("[document.querySelectorAll('*').length, document.querySelectorAll('tbody tr').length]")
    print(f"{where}: {nodes} elements, {rows} rows", flush=True)
    if nodes > 2_500 or rows > 130:
        complaints.append(f"{where}: the page has {nodes} elements and {rows} rows")
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
    reload(page, "fewer requests of tenants")
    expect(panel(page, "Reloads")).to_contain_text("TENANT: 20000/h changed to 15000/h, tighter")
    config.write_text(good + "\nnonsense: 1\n")
    refusals.append((422, "/reload"))
    page.get_by_role("button", name="Reload this node").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill("a mistake")
    dialog.get_by_role("button", name="Reload", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("nonsense")
    page.keyboard.press("Escape")
    expect(panel(page, "Reloads")).to_contain_text("nonsense")
    config.write_text(good)
    reload(page, "without the mistake")
    expect(panel(page, "Reloads").locator(".badge").first).to_contain_text("version")
    open_page(page, "audit")
    actions = page.get_by_role("region", exact=True, name="Actions")
    for text in ["fewer requests of tenants", "a mistake", "without the mistake"]:
        expect(actions).to_contain_text(text)


def reload(page: Page, reason: str) -> None:
    """Reloads the configuration by its dialog, which asks for a reason."""
    page.get_by_role("button", name="Reload this node").click()
    confirm(page, "Reload", reason)


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
    # A whole action: from the button to the reason to the confirmation, by Tab, arrows, Enter and typing only.
    page.get_by_role("button", name="Pause", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_be_visible()
    labelled = "document.activeElement.labels?.[0]?.innerText ?? document.activeElement.innerText"
    fields = []
    for _ in range(8):
        if page.evaluate("document.activeElement.tagName") not in ("DIALOG", "BODY"):
            field = page.evaluate(labelled)
            fields.append(field)
            if field.startswith("Rule"):
                page.keyboard.press("U")
            elif field.startswith("For how long"):
                page.keyboard.press("ControlOrMeta+A")
                page.keyboard.type("2min")
            elif field.startswith("Reason"):
                page.keyboard.type("by keyboard")
                page.keyboard.press("Enter")
                break
        page.keyboard.press("Tab")
    assert any(field.startswith("Reason") for field in fields), fields
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(panel(page, "Explain")).to_contain_text("would be denied")
    page.goto(f"{ADMIN}/#/limits")
    overrides = page.get_by_role("region", exact=True, name="Overrides")
    expect(overrides).to_contain_text("by keyboard")
    overrides.get_by_role("button", name="Remove").focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.locator("dialog[open]").get_by_label("Reason").focus()
    page.keyboard.type("resolved by keyboard")
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.get_by_text("no overrides: the limits of the rules apply")).to_be_visible()


def test_nodes(browser) -> None:
    """The pages of a node show all nodes together, and each alone."""
    first, second = PLAN["pair"]
    for node, user in [(first, "on-first"), (second, "on-second")]:
        for _ in range(3):
            body = {"dimensions": {"userId": user}, "cost": {"usd": "0.10"}}
            call(f"{node['http']}/v1/acquire", body)
    call(f"{second['gateway']}/graphql", {})
    call(f"{second['admin']}/v1/reset?rule=MONTHLY&reason=seen-on-both", {"dimensions": {"userId": "nobody"}})
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    page = context.new_page()
    watch(page, first["admin"])
    page.goto(f"{first['admin']}/#/overview")
    nodes = page.get_by_role("region", exact=True, name="Nodes")
    expect(nodes.locator("tbody tr")).to_have_count(3)
    expect(nodes).to_contain_text("All 2 nodes")
    choice = page.get_by_role("combobox", name="Nodes", exact=True)
    expect(choice).to_have_value("all")
    other = [value for value in choice.locator("option").evaluate_all("all => all.map((one) => one.value)") if value not in ("all", "own")]
    assert len(other) == 1, other
    # Text on each page that only one of the two nodes has.
    for name, region, own, theirs in [
        ("limits", "Callers", "on-first", "on-second"),
        ("money", "Budgets", "on-first", "on-second"),
        ("activity", "Decisions", "on-first", "on-second"),
        ("audit", "Actions", None, "seen-on-both"),
        ("gateways", "Answers", None, "200"),
    ]:
        page.goto(f"{first['admin']}/#/{name}")
        if name == "limits":
            page.get_by_role("group", name="Ranking").get_by_role("button", name="Requests").click()
        main = page.locator("main")
        for value, present, absent in [("all", [own, theirs], []), (other[0], [theirs], [own]), ("own", [own], [theirs])]:
            choice.select_option(value)
            where = page.get_by_role("region", exact=True, name=region)
            for text in filter(None, present):
                expect(where.first).to_contain_text(text)
            for text in filter(None, absent):
                expect(main).not_to_contain_text(text)
    choice.select_option("all")
    page.goto(f"{first['admin']}/#/overview")
    expect(page.get_by_role("img", name="Decisions per second")).to_be_visible()
    accessible(page, "overview of two nodes")
    shoot(page, "nodes")
    page.reload()
    expect(page.get_by_role("combobox", name="Nodes", exact=True)).to_have_value("all")
    not_hacked(page, "two nodes")
    context.close()


def connections(page: Page, count: int) -> None:
    """Waits until the page has this number of live connections. `wait_for_function` compiles its text in the page, whose policy forbids that."""
    until = time.monotonic() + 30
    while (found := page.evaluate("window.opened.size")) != count:
        assert time.monotonic() < until, f"{found} live connections, not {count}"
        page.wait_for_timeout(20)


def test_many_tabs(browser) -> None:
    """Eight open pages, of which one is visible, all get data when they are shown: a hidden page holds no connection."""
    context = browser.new_context()
    # Chromium without a window shows every page, so the test says which is hidden.
    context.add_init_script("""
        window.isHidden = false;
        Object.defineProperty(document, 'hidden', {get: () => window.isHidden});
        window.show = (visible) => { window.isHidden = !visible; document.dispatchEvent(new Event('visibilitychange')); };
        window.opened = new Set();
        const Original = EventSource;
        window.EventSource = class extends Original {
            constructor(url) { super(url); window.opened.add(this); }
            close() { super.close(); window.opened.delete(this); }
        };
    """)
    pages = []
    for _ in range(8):
        page = context.new_page()
        watch(page, ADMIN)
        open_page(page, "overview")
        expect(page.locator(".live")).to_contain_text("live")
        page.evaluate("window.show(false)")
        connections(page, 0)
        pages.append(page)
    for page in pages:
        page.evaluate("window.show(true)")
        expect(page.locator(".live").first).to_have_text("live")
        total = page.locator(".tile", has_text="Allowed").first
        before = total.inner_text()
        expect(total).not_to_have_text(before, use_inner_text=True)
        connections(page, 1)
        page.evaluate("window.show(false)")
        connections(page, 0)
    context.close()


def test_login(browser) -> None:
    """Tokens are needed, roles hold, and leaving ends the session."""
    secured = PLAN["secured"]
    context = browser.new_context()
    page = context.new_page()
    watch(page, secured)
    page.goto(f"{secured}/#/limits")
    page.get_by_label("Access token").fill("wrong")
    refusals.append((401, "/login"))
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown token")
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
    refusals.append((403, "/v1/reset"))
    refused = page.evaluate("""fetch('/v1/reset?all=true', {method: 'POST', headers: {'content-type': 'application/json'},
        body: '{"dimensions": {"userId": "ann", "modelId": "m"}}'}).then((answer) => answer.status)""")
    assert refused == 403, refused
    # Updates that reach the service after the logout would be refused, so the page cancels them.
    held = []
    page.route("**/v1/**", lambda route: held.append(route))
    with page.expect_request("**/v1/**"):
        pass
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    assert held
    for route in held:
        with contextlib.suppress(PlaywrightError):
            route.continue_()
    page.unroute("**/v1/**")
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
            accessible(page, f"{name}, {theme}, {width} px")
            shoot(page, f"{name}-{theme}-{width}")
        page.goto(f"{ADMIN}/#/caller?userId=noisy&modelId=gpt-4&tenantId=acme")
        expect(panel(page, "Explain")).to_contain_text("USER_MODEL")
        look(page, f"caller, {theme}, {width} px")
        for button in ("Override", "Pause", "Ban", "Reset"):
            page.get_by_role("button", name=button, exact=True).click()
            expect(page.locator("dialog[open]")).to_be_visible()
            look(page, f"dialog {button}, {theme}, {width} px")
            page.keyboard.press("Escape")
            expect(page.locator("dialog[open]")).to_have_count(0)
        open_page(page, "money")
        page.get_by_role("button", name="Settle").first.click()
        expect(page.locator("dialog[open]")).to_be_visible()
        look(page, f"dialog Settle, {theme}, {width} px")
        page.keyboard.press("Escape")
        login = context.new_page()
        watch(login, PLAN["secured"])
        login.goto(f"{PLAN['secured']}/#/limits")
        expect(login.get_by_label("Access token")).to_be_visible()
        look(login, f"login, {theme}, {width} px")
        login.close()
        page.get_by_role("button", name="theme").click()
        chosen = page.evaluate("document.documentElement.dataset.theme")
        assert chosen == ("light" if theme == "dark" else "dark"), chosen
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == chosen, "the choice is remembered"
        context.close()


def look(page: Page, where: str) -> None:
    """Asserts that what is shown is accessible and not wider than the window."""
    no_overflow(page, where)
    accessible(page, where)
    not_hacked(page, where)
    wide = page.evaluate("[...document.querySelectorAll('dialog[open]')].map((one) => one.getBoundingClientRect().right - innerWidth)")
    if any(over > 0 for over in wide):
        complaints.append(f"{where}: the dialog is {wide} px wider than the window")


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
        not_hacked(page, "the last page")
        context.close()
        for test in (test_nodes, test_many_tabs, test_login, test_looks):
            started = time.monotonic()
            test(browser)
            print(f"{test.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        browser.close()
    stop.set()
    complaints.extend(f"the browser did not log this refusal: {refusal}" for refusal in refusals)
    if complaints:
        sys.exit("\n".join(dict.fromkeys(complaints)))


main()
