"""What the console must do: CHROMIUM and API HTTP PID of a follower, of the leader and of another follower.

ROWLOCK_UI_LOCKS says how many locks are listed, ROWLOCK_UI_SECONDS in which time a change must be shown (1 is
what is promised; 20 if it is left out). ROWLOCK_AXE is the path of axe-core's axe.min.js.
"""

import concurrent.futures
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from browser import Browser

EVIL = "<img src=x onerror=\"window.hurt=1\">"
WAITERS = 30
LOCKS = int(os.environ.get("ROWLOCK_UI_LOCKS", 3000))
# Seconds in which a change is shown: what is promised is 1, which a machine with other work may miss.
WITHIN = float(os.environ.get("ROWLOCK_UI_SECONDS", "20"))
PHONE = 360


def post(base, path, document):
    request = urllib.request.Request(base + path, json.dumps(document).encode(), method="POST")
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=70) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            # A busy machine may lose its leader for a moment.
            if refusal.code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def take(api, lock, secret, label, wait_ms):
    name = urllib.parse.quote(lock, safe="/")
    return post(api, f"/v1/locks/{name}/acquire", {"secret": secret, "label": label, "wait_ms": wait_ms,
                                                    "request_id": label.encode().hex()[-60:]})


LEASES = []


def lease(api):
    made = post(api, "/v1/leases", {"ttl_ms": 40000})
    LEASES.append((made["lease"], made["secret"]))
    return made["secret"]


def keep_alive(api):
    """All leases, until the end. One that is gone is missed by the facts."""
    while True:
        for lease, secret in list(LEASES):
            with contextlib.suppress(OSError):
                post(api, f"/v1/leases/{lease}/keepalive", {"secret": secret})
        time.sleep(8)


def lock_page(base, lock):
    """Of the lock of this name, at its path."""
    path = "/locks/" + urllib.parse.quote(lock, safe="/@")
    return f"{base}/ui/#/lock?path={urllib.parse.quote(path, safe='')}"


LABELS = "[...document.querySelectorAll('.line li .who')].map((el) => el.textContent)"


def a_line_is_shown_in_order_within_a_second(web, api, http):
    web.go(lock_page(api, "ci/deploy"))
    web.until("an empty lock", "document.querySelector('.verdict')?.textContent.startsWith('No client holds')", 20)
    web.until("a stream", "document.querySelector('h1 .tag')?.textContent === 'live'", 20)
    holder = lease(api)
    held = take(api, "ci/deploy", holder, "holder", 0)
    secrets = [lease(api) for _ in range(WAITERS)]
    names = [f"waiter {n}" for n in range(WAITERS)]
    for secret, name in zip(secrets, names):
        take(api, "ci/deploy", secret, name, 1)
    expected = ["holder", *names]
    took = web.until("the whole line", f"JSON.stringify({LABELS}) === {json.dumps(json.dumps(expected, separators=(',', ':')))}", 20)
    assert took < WITHIN, f"the line was shown after {took} s"
    print(f"{1 + WAITERS} places after {took:.2f} s")
    post(api, "/v1/locks/ci/deploy/release", {"secret": holder, "token": held["token"]})
    took = web.until("the next holder", "document.querySelector('.holders .who')?.textContent === 'waiter 0'", 20)
    assert took < WITHIN, f"the change was shown after {took} s"
    return secrets[0]


def hostile_texts_are_texts(web, api, http):
    secret = lease(api)
    take(api, f"x/{EVIL}", secret, EVIL, 0)
    name = f"x/{EVIL}"
    for base in (api, http):
        web.go(lock_page(base, name))
        web.until("the label", f"document.querySelector('.holders .who')?.textContent === {json.dumps(EVIL)}", 10)
        web.until("the history", f"document.querySelector('.past')?.textContent.includes({json.dumps(EVIL)})", 10)
        assert web.run("document.querySelector('h1').textContent").startswith(name)
        web.go(f"{base}/ui/#/locks?q=x/")
        web.until("the name", f"document.querySelector('.c-name bdi')?.textContent === {json.dumps(name)}", 10)
        assert web.run("document.querySelector('.c-holder bdi').textContent") == EVIL
        assert web.run("window.hurt === undefined && document.querySelectorAll('main img').length === 0")


def many_locks_are_listed_fast(web, api, http):
    def hundred(start):
        secret = lease(api)
        for n in range(start, start + 50):
            locks = [{"lock": f"m/{n:05}-{k}"} for k in range(4)]
            post(api, "/v1/locks/acquire", {"secret": secret, "request_id": f"m{n}", "locks": locks})
    with concurrent.futures.ThreadPoolExecutor(15) as pool:
        list(pool.map(hundred, range(0, LOCKS // 4, 50)))
    web.go(f"{api}/ui/#/locks?q=/locks/m/&limit=10000")
    # Ten thousand with their holders are more than a report has room for.
    took = web.until("all locks", f"/^{LOCKS:,} locks|of more/.test(document.querySelector('.muted')?.textContent)", 20)
    assert took < WITHIN, f"{LOCKS} locks were listed after {took} s"
    print(f"{LOCKS} locks after {took:.2f} s")
    assert web.run("document.querySelectorAll('.rows-seen .lock-row').length") < 60, "only the rows that are seen exist"
    web.run("scrollTo(0, document.body.scrollHeight)")
    web.until("the last lock", "document.querySelector(`.lock-row[aria-rowindex='${document.querySelector('.lock-table').ariaRowCount}']`)", 2)


def the_keyboard_reaches_everything(web, api, http):
    web.go(f"{api}/ui/#/locks?q=m/")
    web.until("locks", "document.querySelectorAll('.rows-seen a').length > 3", 10)
    seen = []
    for _ in range(20):
        web.key("Tab")
        seen.append(web.run("document.activeElement.id || document.activeElement.textContent"))
    for wanted in ("Skip to the page", "Cluster", "Locks", "Sessions", "Tree", "Simulator", "Try it", "theme", "token", "search", "contended", "Name"):
        assert wanted in seen, f"{wanted} is not among {seen}"
    web.go(f"{api}/ui/#/")
    web.until("the nodes", "document.querySelectorAll('.card a').length > 1", 10)
    web.run("document.querySelector('.card a').focus()")
    time.sleep(3)
    assert web.run("document.activeElement.matches('.card a')"), "the focus stays when the page is drawn anew"
    web.key("/")
    web.until("the search", "location.hash === '#/locks' && document.activeElement.id === 'search'", 5)
    web.go(f"{api}/ui/#/locks?q=m/")
    web.until("locks", "document.querySelectorAll('.rows-seen a').length > 3", 10)
    web.run("document.querySelector('.rows-seen a').focus()")
    here = "document.activeElement.closest('.lock-row')?.at"
    at = web.run(here)
    web.key("ArrowDown")
    assert web.run(here) == at + 1
    time.sleep(2)
    assert web.run(here) == at + 1, "the focus stays when the list is drawn anew"
    web.key("Enter")
    web.until("the lock's page", "location.hash.startsWith('#/lock?')", 5)


def a_holder_is_asked_and_the_reason_is_shown_as_text(web, api, http):
    web.go(lock_page(api, "ci/deploy"))
    web.until("the button", "document.querySelector('.holders .ask')", 10)
    web.run("document.querySelector('.holders .ask').focus()")
    web.key("Enter")
    web.until("the dialog", "document.querySelector('dialog').open", 2)
    disabled = "document.querySelector('dialog .primary').disabled"
    assert web.run(disabled), "a reason is needed"
    web.type(EVIL)
    assert not web.run(disabled)
    enter = "(() => { const field = document.querySelector('dialog [name=within]'); field.value = '%s';" \
            " field.dispatchEvent(new Event('input', { bubbles: true })); })()"
    for seconds, is_wrong in (("0", True), ("1.5", True), ("3601", True), ("3600", False)):
        web.run(enter % seconds)
        assert web.run(disabled) == is_wrong, seconds
    web.run("document.querySelector('dialog [name=reason]').focus()")
    web.key("Enter")
    question = "document.querySelector('.holders .asked')?.textContent"
    web.until("the question", f"{question}.startsWith('Asked ') && {question}.endsWith({json.dumps(': ' + EVIL)})", WITHIN)
    assert web.run("window.hurt === undefined && document.querySelectorAll('main img').length === 0")
    # The holder learns the same.
    lease_of_waiter_0, secret = LEASES[1]
    (asked,) = post(api, f"/v1/leases/{lease_of_waiter_0}/keepalive", {"secret": secret})["asked"]
    assert (asked["lock"], asked["reason"]) == ("/locks/ci/deploy", EVIL), asked
    assert 3_000_000 < asked["revoked_in_ms"] <= 3_600_000, asked


def a_lock_is_released_by_force_after_its_name_was_typed(web, api, http):
    web.go(lock_page(api, "ci/deploy"))
    web.until("the button", "document.querySelector('.holders .danger')", 10)
    web.run("document.querySelector('.holders .danger').focus()")
    web.key("Enter")
    web.until("the dialog", "document.querySelector('dialog').open", 2)
    assert web.run("document.querySelector('dialog .danger').disabled")
    web.type("ci/deplo")
    assert web.run("document.querySelector('dialog .danger').disabled")
    web.type("y")
    web.key("Enter")
    web.until("the next holder", "document.querySelector('.holders .who')?.textContent === 'waiter 1'", 5)


def the_buttons_of_try_it_take_a_lock(web, api, http):
    web.go(f"{api}/ui/#/try")
    click = "[...document.querySelectorAll('button')].find((b) => b.textContent === '%s').click()"
    for text, sign in (("New lease", "Lease 0x"), ("Acquire", "holding with token"), ("Release", "after the last")):
        web.until("the button", "document.querySelector('.form')", 5)
        web.run(click % text)
        web.until(text, f"document.querySelector('.verdict').textContent.includes('{sign}')", 10)
        time.sleep(0.2)


def a_circle_of_waiters_is_red(web, api, http):
    one, two = lease(api), lease(api)
    take(api, "circle/a", one, "one", 0)
    take(api, "circle/b", two, "two", 0)
    take(api, "circle/b", one, "one again", 1)
    web.go(lock_page(api, "circle/a"))
    web.until("who waits", "document.querySelector('.graph svg path')", 15)
    assert web.run("document.querySelectorAll('.graph .circle').length") == 0, "nobody waits for one"
    take(api, "circle/a", two, EVIL, 1)
    web.until("the circle", "document.querySelectorAll('.graph .circle').length === 2", 15)
    said = web.run("[...document.querySelectorAll('li.circle')].map((el) => el.textContent).join()")
    assert said == "one waits for circle/b, held by two: deadlock,two waits for circle/a, held by one: deadlock", said


def sessions_have_lanes_that_zoom(web, api, http):
    web.go(lock_page(api, "ci/deploy"))
    web.until("the lanes", "document.querySelectorAll('.lane-names li').length > 3", 15)
    width = "document.querySelector('.lane-view svg').clientWidth"
    before = web.run(width)
    web.run("document.querySelector('.lane-view').focus()")
    web.key("+")
    assert web.run(width) == 2 * before, "the key + zooms in"
    web.run("document.querySelector('.lanes button').click()")
    assert web.run(width) == before, "the button zooms out"


def a_run_of_the_simulator_is_shown_and_nothing_of_it_is_run(web, api, http):
    data = {"lanes": [["node1", "node", 0], [EVIL, "client", 0]], "locks": ["/locks/a"], "end": 9, "violations": [],
            "spells": [[1, 1, 5, "holds", 0, 7]], "story": [[1, "lock", EVIL], [5, "lock", "It ends."]]}
    page = (f"<!DOCTYPE html><h1>Seed 7</h1><p class=verdict>Every promise held.</p>{EVIL}<script>window.hurt=1</script>"
            f"<script type=application/json id=data>{json.dumps(data)}</script><p class=reproduce><code>rowlock sim run</code>")
    case = f"# found: fifo: {EVIL}\nseed 7\nseconds 8\nscenario all\nfaults\n3s kill leader for 1s\n"
    web.go(f"{api}/ui/#/sim")
    web.until("the field", "document.querySelector('#run')", 10)
    for text, sign, lines in ((page, "Seed 7: Every promise held.", 2), (case, f"fifo: {EVIL}", 1)):
        with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
            file.write(text)
            file.flush()
            web.choose_file("#run", file.name)
            web.until("the run", f"document.querySelector('.verdict').textContent === {json.dumps(sign)}", 10)
            assert web.run("document.querySelectorAll('main .past li').length") == lines
            assert web.run("window.hurt === undefined && document.querySelectorAll('main img').length === 0")


PAGES = ["", "locks", "lock?path=%2Flocks%2Fcircle%2Fa", "contention", "contention?lock=%2Flocks%2Fci%2Fdeploy", "sessions", "tree", "sim", "try"]


ROWS = "[...document.querySelectorAll('.rows-seen .lock-row')].sort((a, b) => a.at - b.at)"
NAMES = f"{ROWS}.map((row) => row.querySelector('.c-name').textContent)"


def locks_are_a_table_that_is_searched_sorted_and_filtered(web, api, http):
    secret = lease(api)
    for n, name in enumerate(("team/b/index-2", "team/a/index-1", "team/c/other")):
        take(api, name, secret, f"host-{3 - n}", 0)
        time.sleep(0.05)
    take(api, "team/c/other", lease(api), "waiter", 1)
    web.go(f"{api}/ui/#/locks?q=am/")
    web.until("part of the names", f"{NAMES}.join() === 'team/c/other,team/a/index-1,team/b/index-2'", 10)
    cells = web.run(f"[...{ROWS}[0].querySelectorAll('[role=cell]')].map((cell) => cell.textContent)")
    assert (cells[:2], cells[3]) == (["team/c/other", "host-1"], "1") and all(cells[at].endswith("s") for at in (2, 4)), cells
    click = "[...document.querySelectorAll('.lock-row.head button')].find((one) => one.textContent === '%s').click()"
    for column, names in (("Name", "a/index-1 b/index-2 c/other"), ("Name", "c/other b/index-2 a/index-1"),
                          ("Holder", "c/other a/index-1 b/index-2"), ("Held for", "b/index-2 a/index-1 c/other")):
        web.run(click % column)
        wanted = ",".join(f"team/{name}" for name in names.split())
        web.until(f"the order by {column}", f"{NAMES}.join() === '{wanted}'", 5)
        web.until("the same after the next answer", f"{NAMES}.join() === '{wanted}'", 5)
    web.run("document.getElementById('contended').click()")
    web.until("those with waiters", f"{NAMES}.join() === 'team/c/other'", 5)
    web.until("the address", "location.hash.includes('contended=1') && location.hash.includes('sort=held')", 5)
    web.run("document.getElementById('search').focus(); document.getElementById('search').value = ''")
    web.type("no such lock")
    web.until("none", "document.querySelector('.muted').textContent === 'No such lock is held or waited for.'", 5)
    web.go(f"{api}/ui/#/locks?q=/locks/team/a")
    web.until("the beginning of a path", f"{NAMES}.join() === 'team/a/index-1'", 10)


WAITED = "[...document.querySelectorAll('.waited tbody tr')]"


def the_waiting_is_shown_by_lock_and_by_holder(web, api, http):
    web.go(f"{api}/ui/#/contention")
    web.until("the locks", f"{WAITED}.some((row) => row.textContent.includes('ci/deploy'))", 20)
    with urllib.request.urlopen(f"{api}/v1/contention", timeout=10) as answer:
        found = json.load(answer)
    said = web.run("document.querySelector('.verdict').textContent")
    assert said.startswith("Since ") and said.endswith(f", for {found['lock_count']} locks."), said
    shown = web.run(f"{WAITED}.map((row) => row.querySelector('th').textContent)")
    assert sorted(shown) == sorted(lock["lock"].removeprefix("/locks/") for lock in found["locks"]), shown
    (deploy,) = (lock for lock in found["locks"] if lock["lock"] == "/locks/ci/deploy")
    row = web.run(f"{WAITED}.find((row) => row.textContent.includes('ci/deploy')).textContent")
    assert f"{deploy['waits']} of {deploy['requests']}" in row and deploy["behind"][0]["holder"] in row, row
    assert web.run("document.querySelectorAll('.over-time svg[role=img] .part').length") > 0, "a picture over time"
    assert web.run("document.querySelectorAll('.over-time .blind').length") == 0, "all records are there"
    web.run(f"{WAITED}.find((row) => row.textContent.includes('ci/deploy')).querySelector('a').click()")
    web.until("the pairs", "document.querySelector('h1').textContent === 'ci/deploy: waits' && " + WAITED + ".length > 20", 20)
    assert "waiter 0holder" in web.run(WAITED + ".map((row) => row.textContent).join()"), "who waited behind whom"
    web.run("(() => { const by = document.querySelector('[name=by]'); by.value = 'session'; by.dispatchEvent(new Event('change')); })()")
    web.until("sessions", f"location.hash.includes('by=session') && {WAITED}.every((row) => row.textContent.startsWith('0x'))", 20)
    web.go(f"{api}/ui/#/contention?lock=%2Flocks%2Fcircle%2Fa")
    web.until("a hostile label", f"{WAITED}.some((row) => row.textContent.includes({json.dumps(EVIL)}))", 20)
    assert web.run("window.hurt === undefined && document.querySelectorAll('main img').length === 0")


def what_the_sums_of_the_waiting_lack_is_said(web, api, http):
    """An empty history, a late beginning, gaps, thousands of locks, a node without a history, as nodes answer."""
    web.go(f"{api}/ui/#/locks")
    web.until("the page", "document.querySelector('h1')", 10)
    lock = {"waited_ms": 8000, "requests": 3, "waits": 2, "gave_up": 0, "longest_ms": 5000, "waiting": [{"waiter": "b", "waited_ms": 8000}],
            "behind": [{"holder": "a", "waited_ms": 4000}, {"holder": None, "unknown": True, "waited_ms": 3000}, {"holder": None, "waited_ms": 1000}]}
    slices = {"step_ms": 60000, "waited_ms": [None] * 30 + [0, 8000] + [0] * 28}
    empty = {"since_ms": 0, "from_ms": 0, "until_ms": 3600000, "gaps": [], "unknown_ms": 0, "lost": {"waits": 0, "at_least_ms": 0, "at_most_ms": 0},
             "waited_ms": 0, "requests": 0, "waits": 0, "lock_count": 0, "slices": {"step_ms": 60000, "waited_ms": [0] * 60}, "locks": [], "more": False}
    holey = {**empty, "from_ms": 1800000, "cut": "trimmed", "waited_ms": 8000, "requests": 3, "waits": 2, "lock_count": 1, "slices": slices,
             "gaps": [{"from_ms": 2000000, "to_ms": 2600000, "reason": "too-fast", "missing": 9}],
             "lost": {"waits": 2, "at_least_ms": 5000, "at_most_ms": 605000}, "locks": [{"lock": "/locks/a", **lock}]}
    many = {**empty, "waited_ms": 8000 * 3000, "requests": 9000, "waits": 6000, "lock_count": 3000, "more": True,
            "locks": [{"lock": f"/locks/{n}", **lock} for n in range(100)]}
    lines = "[...document.querySelectorAll('ul.unknown li')].map((line) => line.textContent)"
    said = "document.querySelector('.verdict').textContent"
    for n, (status, answer, wanted) in enumerate((
            (200, empty, f"{said}.endsWith('no client waited for a lock.') && !{lines}.length && !{WAITED}.length && document.querySelector('.over-time').hidden"),
            (200, holey, f"/ is known: the history begins then[.],The history has 1 gap, 10 min 0 s in all.*,The sums lack 2 waits .*5[.]0 s to 10 min 5 s/.test({lines}.join())"
                         f" && document.querySelectorAll('.over-time .blind').length === 2 && document.querySelectorAll('.share .blind').length === 1"),
            (200, many, f"{said}.includes('6,000 of 9,000 requests waited, for 3,000 locks. The 100 with') && {WAITED}.length === 100"
                        " && [...document.querySelectorAll('main button')].some((one) => one.textContent === 'Load up to 1,000' && !one.hidden)"),
            (501, {"detail": "this node keeps no history"}, f"{said} === 'The node says: this node keeps no history.'"))):
        web.run("window.plain ??= window.fetch; window.fetch = (path, ...rest) => (path.startsWith('/v1/contention?') ? Promise.resolve("
                f"new Response({json.dumps(json.dumps(answer))}, {{ status: {status} }})) : window.plain(path, ...rest)); 0")
        web.run(f"location.hash = '#/contention?n={n}'")
        web.until(f"answer {n}", wanted, 10)


def twenty_waiters_and_the_history_fit_on_a_screen(web, api, http):
    web.size(1280, 800)
    web.go(lock_page(api, "ci/deploy"))
    web.until("queue and history", "document.querySelectorAll('.waiters li').length > 20 && document.querySelectorAll('.past li').length > 3", 10)
    bottom = "document.querySelector('%s').getBoundingClientRect().bottom"
    for what in (".waiters li:nth-child(20)", ".past li:nth-child(3)"):
        assert web.run(bottom % what) <= 800, what


def the_theme_is_chosen_and_kept(web, api, http):
    web.go(f"{api}/ui/#/")
    web.until("the button", "document.getElementById('theme').textContent === 'Auto'", 10)
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = web.run(background)
    web.run("document.getElementById('theme').click()")
    dark = web.run(background)
    assert dark != light, dark
    web.go(f"{api}/ui/#/locks")
    web.until("the same look", f"document.getElementById('theme').textContent === 'Dark' && {background} === '{dark}'", 10)
    web.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
    assert web.run(background) == light


def no_page_is_wider_than_a_phone(web, api, http, pages=PAGES):
    web.size(PHONE)
    for page in pages:
        web.go(f"{api}/ui/#/{page}")
        web.until("the page", "document.querySelector('h1')", 10)
        time.sleep(0.7)
        width = web.run("document.documentElement.scrollWidth")
        assert width <= PHONE, f"/{page} has {width} pixels"
        assert web.run("document.querySelector('header').offsetHeight") < 90, "at most two lines of navigation"
    web.size(1280)


def axe_has_no_serious_finding(web, api, http, pages=PAGES):
    path = os.environ.get("ROWLOCK_AXE")
    if not path:
        print("ROWLOCK_AXE does not say where axe.min.js of axe-core is: pages are not judged by it")
        return
    with open(path) as file:
        axe = file.read()
    for scheme in ("light", "dark"):
        web.size(1280, scheme=scheme)
        for page in pages:
            web.go(f"{api}/ui/#/{page}")
            web.until("the page", "document.querySelector('h1')", 10)
            time.sleep(1.5)
            web.run(axe + "; null")
            found = web.run("axe.run(document).then((it) => it.violations.map((one) => `${one.impact}: ${one.id}`))")
            serious = [one for one in found if one.startswith(("serious", "critical"))]
            assert not serious, f"/{page}, {scheme}: {serious}"
            if found:
                print(f"/{page}, {scheme}: {found}")
    print(f"axe-core: {len(pages)} pages, light and dark")
    web.size(1280)


def nothing_else_was_asked(web, *bases):
    assert not web.complaints(), web.complaints()
    for url in web.requests():
        assert url == "about:blank" or url.startswith(tuple(bases)), url


BANNER = "document.getElementById('banner')"
VERDICT = "document.querySelector('.verdict').textContent"
PULSE = "document.querySelector('h1 .tag')?.textContent"


def with_the_leader_first(nodes):
    """Those that run, as the first of them that knows a leader says."""
    for _ in range(100):
        for api, *_ in nodes:
            with contextlib.suppress(OSError), urllib.request.urlopen(api + "/v1/status", timeout=2) as answer:
                status = json.load(answer)
                leads = next(one["api"] for one in status["nodes"] if one["node"] == (status["raft"]["leader"] or status["node"]))
                if status["serving"] and any(one[0].endswith(leads) for one in nodes):
                    return sorted(nodes, key=lambda one: not one[0].endswith(leads))
        time.sleep(0.2)
    raise AssertionError("no leader")


def an_outage_is_told_alike_by_headline_line_and_cards(web, nodes):
    """Of one node, then of two, at a follower and at the leader; then it is over."""
    _, _, (_, _, third) = with_the_leader_first(nodes)
    running = [one for one in nodes if one[2] != third]
    down = "[...document.querySelectorAll('.card.down')].length"
    stopped = []
    stop = lambda pid: (os.kill(pid, signal.SIGSTOP), stopped.append(pid))
    try:
        stop(third)
        for base, *_ in with_the_leader_first(running):
            web.go(f"{base}/ui/#/")
            web.until("the dead node", f"{down} === 1 && {VERDICT}.includes('2 of 3 voters answer')", 20)
            assert "tolerates no further failure" in web.run(VERDICT)
            assert web.run(f"{BANNER}.hidden"), "clients are served"
        (leader_api, *_), (api, _, pid) = with_the_leader_first(running)
        web.go(lock_page(api, "ci/deploy"))
        web.until("a stream", f"{PULSE} === 'live'", 20)
        stop(pid)
        web.until("no answer", f"{BANNER}.textContent.includes('does not answer') && {PULSE} === 'out of date'", 20)
        web.run("location.hash = '#/'")
        web.until("that nothing is known", f"{VERDICT}.startsWith('Unknown: this node has not answered since')", 5)
        web.go(f"{leader_api}/ui/#/")
        web.until("the loss of the quorum", f"{VERDICT}.startsWith('No ') && {VERDICT}.includes('Locks cannot change hands')", 20)
        # A leader keeps its office, and knows whom it misses. On a busy machine it may have lost it before.
        if web.run(VERDICT).startswith("No quorum"):
            web.until("who is missed", f"{VERDICT}.includes('1 of 3 voters answers, 2 are needed') && {down} === 2", 20)
        assert "tolerates" not in web.run(VERDICT) and " leads" not in web.run(VERDICT)
        assert web.run(BANNER + ".textContent").startswith(web.run(VERDICT).split(":")[0])
        cards = web.run("[...document.querySelectorAll('.card')].map((one) => one.textContent).join()")
        assert "cut off: newer writes are unknown" in cards and "up to date" not in cards, cards
        web.run("location.hash = '#/lock?path=%2Flocks%2Fci%2Fdeploy'")
        web.until("that it is not live", f"{PULSE} === 'out of date'", 10)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    web.go(f"{leader_api}/ui/#/")
    web.until("the end of it", f"{BANNER}.hidden && {down} === 0 && {VERDICT}.includes('All 3 voters answer')", 40)
    lost = web.run("[...document.querySelectorAll('.past li')].map((one) => one.textContent)")
    lost = [line for line in lost if "no leader with a quorum" in line]
    assert lost and all(line.endswith(("s", "min")) and " 0 ms" not in line and "for -" not in line for line in lost), lost


def the_leaders_death_is_said_and_survived(web, api, http, leader_api, pid):
    web.go(lock_page(leader_api, "ci/deploy"))
    web.until("the holder", "document.querySelector('.holders .who')?.textContent === 'waiter 1'", 10)
    os.kill(pid, signal.SIGKILL)
    web.until("what is wrong", f"!{BANNER}.hidden && {BANNER}.textContent.includes('does not answer')", 20)
    assert web.run("document.querySelector('.holders .who').textContent") == "waiter 1", "what was seen is kept"
    assert web.run(f"[...{BANNER}.querySelectorAll('a')].map((a) => a.href)").count(lock_page(api, "ci/deploy")) == 1
    web.go(lock_page(api, "ci/deploy"))
    web.until("the same queue at another node", "document.querySelector('.holders .who')?.textContent === 'waiter 1'", 20)
    web.until("a new leader", f"{BANNER}.hidden && document.getElementById('node').className === 'good'", 30)
    web.until("a stream again", "document.querySelector('h1 .tag')?.textContent === 'live'", 20)


def what_came_before_is_shown(web, api, http):
    """Leaders and numbers over time, on the page of the cluster, with the grants and waits of locks."""
    web.go(f"{api}/ui/#/")
    web.until("who led", "document.querySelector('.past')?.textContent.includes(' leads in term ')", 10)
    web.until("lines over time", "document.querySelectorAll('.facts .spark').length >= 3", 20)
    assert "no listener of this node has TLS" in web.run("document.querySelector('main').textContent")
    facts = web.run("document.querySelector('.facts').innerText")
    for wanted in ("Grants", "/s", "Wait", "p99", "Waiting"):
        assert wanted in facts, facts
    web.go(lock_page(api, "ci/deploy"))
    web.until("waits and holds", "/Wait.*p99.*Hold.*p99/s.test(document.querySelector('.facts')?.textContent)", 20)


def main():
    chromium, *rest = sys.argv[1:]
    nodes = [(api, http, int(pid)) for api, http, pid in zip(rest[::3], rest[1::3], rest[2::3])]
    (api, http, _), (leader_api, _, pid), _ = nodes
    threading.Thread(target=keep_alive, args=[api], daemon=True).start()
    web = Browser(chromium)
    try:
        web.size(1280)
        facts = [a_line_is_shown_in_order_within_a_second, hostile_texts_are_texts, many_locks_are_listed_fast,
                 locks_are_a_table_that_is_searched_sorted_and_filtered, twenty_waiters_and_the_history_fit_on_a_screen,
                 the_theme_is_chosen_and_kept,
                 the_keyboard_reaches_everything, a_holder_is_asked_and_the_reason_is_shown_as_text, a_lock_is_released_by_force_after_its_name_was_typed,
                 the_buttons_of_try_it_take_a_lock, what_came_before_is_shown, a_circle_of_waiters_is_red, sessions_have_lanes_that_zoom,
                 the_waiting_is_shown_by_lock_and_by_holder, what_the_sums_of_the_waiting_lack_is_said,
                 a_run_of_the_simulator_is_shown_and_nothing_of_it_is_run, no_page_is_wider_than_a_phone,
                 axe_has_no_serious_finding]
        for fact in facts:
            fact(web, api, http)
            print(fact.__name__.replace("_", " "), flush=True)
        an_outage_is_told_alike_by_headline_line_and_cards(web, nodes)
        the_leaders_death_is_said_and_survived(web, api, http, leader_api, pid)
        nothing_else_was_asked(web, *(base for one in nodes for base in one[:2]))
        print(f"{len(facts) + 3} facts")
    finally:
        web.close()


if __name__ == "__main__":
    main()
