"""What pages need steps aside for programs, and static files are answered without a thread around the view."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.test import RequestFactory
from django.utils.module_loading import import_string

from mlxplatform.http.people import concerns_people


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/jobs"])
def test_an_api_call_without_a_session_concerns_no_person(path: str) -> None:
    assert not concerns_people(RequestFactory().get(path))


@pytest.mark.parametrize("path", ["/", "/admin/", "/console/chat", "/health"])
def test_a_page_concerns_people(path: str) -> None:
    assert concerns_people(RequestFactory().get(path))


def test_an_api_call_from_a_signed_in_browser_concerns_people() -> None:
    request = RequestFactory().get("/v1/models")
    request.COOKIES[settings.SESSION_COOKIE_NAME] = "x"
    assert concerns_people(request)


def test_no_link_of_the_chain_is_synchronous() -> None:
    """A synchronous one would hold a thread for as long as a view runs, and hide hang-ups from it."""
    assert [name for name in settings.MIDDLEWARE if not getattr(import_string(name), "async_capable", False)] == []
