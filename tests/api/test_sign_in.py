"""The sign-in page: who gets in, how fast guessing goes, and what an answer gives away."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from mlxplatform.accounts import people, throttle
from mlxplatform.accounts.models import AuditEntry, SignInFailure
from mlxplatform.inference.contract import Refusal

pytestmark = pytest.mark.django_db(transaction=True)

HERE = {"host": "localhost"}


@pytest.fixture(autouse=True)
def quick_hashes(settings: Any) -> None:
    """A hash made slow on purpose would be most of what these tests, with their many guesses, do."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def password() -> str:
    return people.add("anna", "admin", "default", actor="test")


def attempt(name: str, password: str, address: str = "192.0.2.1", **more: Any) -> Any:
    return Client(headers=HERE).post("/login/", {"username": name, "password": password, **more}, REMOTE_ADDR=address)


def test_a_sixth_guess_waits_and_so_does_the_right_password(password: str) -> None:
    for _ in range(throttle.PER_ACCOUNT_AND_ADDRESS):
        assert attempt("anna", "wrong").status_code == 200
    refused = attempt("anna", password)
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 901
    assert "Too many wrong passwords" in refused.content.decode()
    assert attempt("ANNA", password).status_code == 429, "the name's case is no way around"
    assert attempt("anna", password, "192.0.2.2").status_code == 302, "elsewhere the owner gets in"
    SignInFailure.objects.update(at=timezone.now() - throttle.WINDOW - timedelta(seconds=1))
    assert attempt("anna", password).status_code == 302


def test_an_address_that_tries_many_names_waits(password: str) -> None:
    for number in range(throttle.PER_ADDRESS):
        attempt(f"user{number}", "wrong")
    assert attempt("anna", password).status_code == 429
    assert attempt("anna", password, "192.0.2.9").status_code == 302


def test_one_ipv6_customer_is_one_address(password: str) -> None:
    for number in range(throttle.PER_ACCOUNT_AND_ADDRESS):
        attempt("anna", "wrong", f"2001:db8:1:1::{number:x}")
    assert attempt("anna", password, "2001:db8:1:1:ffff::1").status_code == 429
    assert attempt("anna", password, "2001:db8:1:2::1").status_code == 302


def test_attempts_at_once_are_all_counted() -> None:
    for _ in range(throttle.PER_ACCOUNT_AND_ADDRESS):
        throttle.begin("anna", "192.0.2.1")
    with pytest.raises(Refusal):
        throttle.begin("anna", "192.0.2.1")


def test_a_client_cannot_choose_its_address_unless_a_proxy_vouches(password: str, settings: Any, monkeypatch: Any) -> None:
    import ipaddress

    def behind(spoofed: str, peer: str) -> Any:
        headers = {**HERE, "x-forwarded-for": spoofed}
        return Client(headers=headers).post("/login/", {"username": "anna", "password": "wrong"}, REMOTE_ADDR=peer)

    for number in range(throttle.PER_ACCOUNT_AND_ADDRESS):
        behind(f"198.51.100.{number}", "192.0.2.1")
    assert behind("198.51.100.99", "192.0.2.1").status_code == 429
    monkeypatch.setitem(settings.ENV.values, "proxies", [ipaddress.ip_network("192.0.2.1")])
    assert behind("198.51.100.99", "192.0.2.1").status_code == 200
    for number in range(throttle.PER_ACCOUNT_AND_ADDRESS):
        behind(f"203.0.113.{number}, 198.51.100.7", "192.0.2.1")
    assert behind("203.0.113.200, 198.51.100.7", "192.0.2.1").status_code == 429


def test_an_answer_does_not_tell_whether_the_account_exists(password: str) -> None:
    def said(name: str) -> str:
        text = attempt(name, "wrong").content.decode()
        return "".join(line for line in text.splitlines() if "csrfmiddlewaretoken" not in line).replace(name, "")

    assert said("anna") == said("nobody")


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "/\\evil.example"])
def test_signing_in_leads_to_no_other_site(password: str, target: str) -> None:
    assert attempt("anna", password, next=target)["Location"] == "/"


@pytest.mark.parametrize(("page", "back"), [
    ("http://localhost/console/schedules?x=1", "/console/schedules%3Fx%3D1"),
    ("https://evil.example/console/keys", "/"),
    ("", "/"),
])  # fmt: skip
def test_a_form_sent_after_the_session_ended_leads_back_to_its_page(page: str, back: str) -> None:
    answer = Client(headers={**HERE, "referer": page}).post("/console/schedules/action", {"action": "run"})
    assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={back}")


@pytest.mark.parametrize(("path", "typed"), [
    ("/console/keys/action", {"action": "create", "name": "nightly", "project": "Not One", "concurrency": 7, "scopes": "read"}),
    ("/console/people/action", {"action": "add", "name": "nightly", "role": "viewer", "project": "Not One"}),
])  # fmt: skip
def test_what_was_typed_outlives_a_mistake(password: str, path: str, typed: dict[str, Any]) -> None:
    browser = Client(headers=HERE)
    browser.post("/login/", {"username": "anna", "password": password})
    answer = browser.post(path, typed)
    page = answer.content.decode()
    assert answer.status_code == 400 and 'role="alert"' in page
    assert 'value="nightly"' in page and 'value="Not One"' in page
    if "concurrency" in typed:
        assert 'value="7"' in page and 'value="read" checked' in page and 'value="write" checked' not in page
    else:
        assert '<option value="viewer" selected>' in page


def test_pages_that_are_not_there_and_forms_that_are_too_old_lead_on(password: str) -> None:
    browser = Client(headers={**HERE, "accept": "text/html"}, enforce_csrf_checks=True)
    lost = browser.get("/console/nowhere/<b>")
    assert lost.status_code == 404 and "default-src 'none'" in lost["Content-Security-Policy"]
    assert 'href="/"' in lost.content.decode() and "<b>" not in lost.content.decode()
    old = browser.post("/login/", {"username": "anna", "password": password})
    assert old.status_code == 403 and "Nothing was changed" in old.content.decode() and "Django" not in old.content.decode()


def test_the_admin_has_no_door_of_its_own() -> None:
    assert Client(headers=HERE).get("/admin/login/?next=/admin/")["Location"] == "/login/?next=/admin/"


def test_cookies_are_closed_to_scripts_and_other_sites_and_secure_over_tls(password: str) -> None:
    browser = Client(headers=HERE)
    browser.post("/login/", {"username": "anna", "password": password})
    cookie = browser.cookies["sessionid"]
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == (True, "Lax", "")
    tls = Client(headers=HERE)
    tls.post("/login/", {"username": "anna", "password": password}, secure=True)
    assert (tls.cookies["sessionid"]["secure"], tls.cookies["csrftoken"]["secure"]) == (True, True)


def test_a_session_is_new_after_signing_in_and_over_after_signing_out(password: str) -> None:
    browser = Client(headers=HERE)
    browser.cookies["sessionid"] = "chosen-by-somebody-else"
    browser.post("/login/", {"username": "anna", "password": password})
    session = browser.cookies["sessionid"].value
    assert session != "chosen-by-somebody-else"
    assert browser.get("/").status_code == 200
    browser.post("/logout/")
    stale = Client(headers=HERE)
    stale.cookies["sessionid"] = session
    assert stale.get("/").status_code == 302
    assert Client(headers=HERE).get("/logout/").status_code == 405


def test_a_password_is_changed_by_its_owner_only_and_ends_other_sessions(password: str) -> None:
    one, other = Client(headers=HERE), Client(headers=HERE)
    for browser in (one, other):
        browser.post("/login/", {"username": "anna", "password": password})
    assert one.post("/console/password", {"old": "no", "new": "a-new-long-one"}).status_code == 400
    assert "too short" in one.post("/console/password", {"old": password, "new": "short"}).content.decode()
    assert one.post("/console/password", {"old": password, "new": "a-new-long-one"}).status_code == 302
    assert one.get("/").status_code == 200
    assert other.get("/").status_code == 302
    assert attempt("anna", "a-new-long-one").status_code == 302


def test_a_person_kept_out_is_out_at_once_and_the_last_administrator_stays(password: str) -> None:
    boss = Client(headers=HERE)
    boss.post("/login/", {"username": "anna", "password": password})
    made = boss.post("/console/people/action", {"action": "add", "name": "bea", "role": "member", "project": "blue"}, follow=True)
    word = made.context["password"]["password"]
    assert word in made.content.decode()
    assert word not in boss.get("/console/people").content.decode(), "shown once"
    bea = Client(headers=HERE)
    bea.post("/login/", {"username": "bea", "password": word})
    assert bea.get("/console/jobs").status_code == 200
    boss.post("/console/people/action", {"action": "disable", "name": "bea"})
    assert bea.get("/console/jobs").status_code == 302
    refused = boss.post("/console/people/action", {"action": "disable", "name": "anna"}, follow=True)
    assert "only administrator" in refused.content.decode()
    actions = AuditEntry.objects.filter(action__startswith="person.").values_list("action", flat=True)
    assert {"person.add", "person.disable", "person.sign_in"} <= set(actions)
    assert not any(word in str(entry) for entry in AuditEntry.objects.values_list("before", "after"))


def test_a_forgotten_password_is_mended_from_the_terminal(password: str, capsys: pytest.CaptureFixture[str]) -> None:
    get_user_model().objects.filter(username="anna").update(is_active=False)
    call_command("people", "password", "anna")
    new = capsys.readouterr().out.strip()
    assert attempt("anna", new).status_code == 302
    with pytest.raises(CommandError, match="nobody of this name"):
        call_command("people", "password", "nobody")
    call_command("people", "add", "vic", role="viewer", project="blue")
    call_command("people", "list")
    assert "vic  viewer  blue  active" in capsys.readouterr().out
