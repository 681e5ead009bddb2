"""What the console must do where the listener asks for a token: CHROMIUM API TOKEN_OF_AN_OPERATOR."""

import json
import sys
import urllib.request

from browser import Browser
from console import axe_has_no_serious_finding, no_page_is_wider_than_a_phone, nothing_else_was_asked


def ask(api, token, what, document):
    method, path = what.split(" ")
    head = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(api + path, json.dumps(document).encode(), head, method=method)
    with urllib.request.urlopen(request, timeout=70) as answer:
        return json.load(answer)


def the_page_asks_for_a_token_and_shows_nothing_without(web, api, token):
    web.go(f"{api}/ui/#/sessions")
    web.until("the question", "document.querySelector('dialog')?.open", 20)
    assert "0x" not in web.run("document.querySelector('main').textContent")
    web.type(token)
    web.key("Enter")
    web.until("who answers", "document.getElementById('node').className === 'good'", 20)
    assert token not in web.run("document.documentElement.outerHTML"), "it is written nowhere"
    web.until("that there is none", "document.querySelector('main .muted').textContent === 'No sessions are open.'", 20)


def a_session_is_ended_after_its_id_was_typed(web, api, token):
    leases = [ask(api, token, "POST /v1/leases", {"ttl_ms": 40000}) for _ in range(2)]
    for lease, label in zip(leases, ("first", "second")):
        ask(api, token, "POST /v1/locks/ci/deploy/acquire",
            {"secret": lease["secret"], "label": label, "wait_ms": 1, "request_id": label})
    first = leases[0]["lease"]
    web.until("both", "document.querySelectorAll('.rows li').length === 2", 20)
    web.run(f"[...document.querySelectorAll('.rows a')].find((a) => a.textContent.includes('{first}')).click()")
    end = "[...document.querySelectorAll('main button')].find((b) => b.textContent.startsWith('End this'))"
    web.until("the button", f"{end}?.hidden === false", 20)
    web.until("what it holds", "document.querySelector('.rows')?.textContent.includes('ci/deploy')", 20)
    pages = ["sessions", f"session?id={first}"]
    no_page_is_wider_than_a_phone(web, api, api, pages)
    axe_has_no_serious_finding(web, api, api, pages)
    web.until("the button again", f"{end}?.hidden === false", 20)
    web.run(f"{end}.focus()")
    web.key("Enter")
    web.until("the dialog", "document.querySelector('dialog')?.open", 5)
    go = "document.querySelector('dialog .danger').disabled"
    web.type(first[:-1])
    assert web.run(go)
    web.type(first[-1])
    assert not web.run(go)
    web.key("Enter")
    web.until("its end", "document.querySelector('main').textContent.includes('It has ended.')", 20)
    web.go(f"{api}/ui/#/lock?path=%2Flocks%2Fci%2Fdeploy")
    web.until("the next holder", "document.querySelector('.holders .who')?.textContent === 'second'", 20)
    web.until("what happened", "document.querySelector('.past')?.textContent.includes('(session-ended)')", 20)


def main():
    chromium, api, token = sys.argv[1:]
    web = Browser(chromium)
    try:
        web.size(1280)
        facts = [the_page_asks_for_a_token_and_shows_nothing_without, a_session_is_ended_after_its_id_was_typed]
        for fact in facts:
            fact(web, api, token)
            print(fact.__name__.replace("_", " "), flush=True)
        nothing_else_was_asked(web, api)
        print(f"{len(facts)} facts")
    finally:
        web.close()


if __name__ == "__main__":
    main()
