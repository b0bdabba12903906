"""Our own answered requests as a source: opted in by key, read once, grown, branched, deleted."""

import datetime as dt

import pytest
from django.utils import timezone

from mlxplatform.inference import request_log
from mlxplatform.inference.contract import Message, Usage
from mlxplatform.inference.models import FinishedRequest
from mlxplatform.inference.request_log import Content, Ended, Said
from mlxplatform.memory import history, runs
from mlxplatform.memory.models import Conversation, Vault
from mlxplatform.memory.vault import Wiki
from tests.fixtures.memory_notes import Ctx, Scripted

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "Lelit_Anna"
DESCALED = ("Does my Lelit Anna need care?", "The Lelit Anna should be descaled every two months.")
GASKET = ("Which gasket does the Lelit Anna take?", "The Lelit Anna takes a 57 mm gasket of silicone.")
SUN = ("What does the Lelit Anna weigh?", "The Lelit Anna weighs seven kilograms without water.")


@pytest.fixture
def vault(settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    return Vault.objects.create(name="notes", policy="auto", history_keys=["key_a"], min_chunks=1)


def answered(name, *exchanges, key="key_a", project="default", **more):
    """A finished request as the protocols record it: all earlier exchanges, and the last one's answer."""
    messages = [Message("system", "Be brief.")]
    for question, answer in exchanges:
        messages += [Message("user", question), Message("assistant", answer)]
    content = Content(messages[:-1], None, [Said(exchanges[-1][1], finish_reason="stop")])
    request_log.add(
        Ended(name, "/v1/chat/completions", project, key, "m", "completed", Usage(1, 1), 0.1, content=content, **more)
    )
    request_log.flush()
    FinishedRequest.objects.filter(pk=name).update(
        ended_at=timezone.now() - dt.timedelta(minutes=5) + dt.timedelta(seconds=_tick())
    )


_ticks = iter(range(10_000))


def _tick():
    return next(_ticks) / 100


def told(vault):
    """Every conversation as (turns of text)."""
    return [[m.text for m in c.messages.all()] for c in Conversation.objects.filter(vault=vault).order_by("pk")]


def synthesize(vault, number=1):
    vault.refresh_from_db()
    client = Scripted()
    return runs.synthesize(Ctx({"vault": vault.name}, f"job_{number:016d}"), vault, client), client


def test_only_opted_in_keys_of_the_own_project_are_read(vault):
    answered("r1", DESCALED)
    answered("r2", GASKET, key="key_b")
    answered("r3", SUN, key="")
    answered("r4", SUN, project="other")
    assert history.read(vault).added == 1 and told(vault) == [list(DESCALED)]
    vault.history_keys, vault.own_history = ["key_a", "key_b"], True
    assert history.read(vault).added == 2, "a key that is opted in later is read from its beginning"
    assert history.read(vault).added == 0 and len(told(vault)) == 3


def test_a_growing_chat_is_one_conversation_and_each_turn_is_read_once(vault):
    answered("r1", DESCALED)
    history.read(vault)
    answered("r2", DESCALED, GASKET)
    answered("r3", DESCALED, GASKET, SUN)
    read = history.read(vault)
    assert (read.added, read.changed) == (0, 1)
    assert told(vault) == [[*DESCALED, *GASKET, *SUN]]
    answered("r4", DESCALED, GASKET)
    assert (history.read(vault).changed, len(told(vault))) == (0, 1), "a shorter record of the same chat takes nothing away"


@pytest.mark.parametrize("together", [True, False])
def test_a_branch_begins_with_its_own_question_and_grows_by_itself(vault, together):
    answered("r1", DESCALED, GASKET)
    if not together:
        history.read(vault)
    again = (GASKET[0], "The Lelit Anna takes the gasket of 57 mm that the shop sells.")
    answered("r2", DESCALED, again)
    answered("r3", DESCALED, again, SUN)
    history.read(vault)
    assert told(vault) == [[*DESCALED, *GASKET], [*again, *SUN]]


def test_two_chats_that_begin_alike_stay_two(vault):
    hello = ("hi", "Hello! How can I help?")
    answered("r1", hello, DESCALED)
    answered("r2", hello, GASKET)
    history.read(vault)
    assert told(vault) == [[*hello, *DESCALED], [*GASKET]]


def test_requests_kept_without_words_and_without_an_answer_are_not_read(vault):
    request_log.add(Ended("r1", "/v1/chat/completions", "default", "key_a", "m", "completed", Usage(1, 1), 0.1, content=None))
    answered("r2", ("A question", ""))
    assert history.read(vault).added == 0


def test_a_kill_between_reading_and_the_cursor_reads_again_and_stores_once(vault, monkeypatch):
    answered("r1", DESCALED)
    answered("r2", DESCALED, GASKET)
    with monkeypatch.context() as patch:
        patch.setattr(history.HistoryRecord.objects, "bulk_create", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            history.read(vault)
    assert told(vault) == []
    assert history.read(vault).added == 1 and told(vault) == [[*DESCALED, *GASKET]]


def test_a_deleted_record_takes_what_only_it_held_out_of_the_wiki(vault):
    answered("r1", DESCALED)
    answered("r2", DESCALED, GASKET)
    synthesize(vault)
    assert "57 mm" in Wiki.of(vault).read(PAGE)
    request_log.forget("default", request_id="r2")
    synthesize(vault, 2)
    text = Wiki.of(vault).read(PAGE)
    assert "57 mm" not in text and "two months" in text and told(vault) == [list(DESCALED)]
    answered("r3", DESCALED, GASKET, SUN)
    synthesize(vault, 3)
    assert "57 mm" not in Wiki.of(vault).read(PAGE), "sent along with a later question, it stays away"


def test_deleting_everything_of_a_key_forgets_its_conversations(vault):
    answered("r1", DESCALED, GASKET)
    synthesize(vault)
    assert Wiki.of(vault).read(PAGE)
    request_log.forget("default", key_id="key_a")
    _, client = synthesize(vault, 2)
    assert Wiki.of(vault).read(PAGE) is None and Conversation.objects.count() == 0 and client.calls == 0
    answered("r2", DESCALED, GASKET, SUN)
    synthesize(vault, 3)
    assert Conversation.objects.count() == 0, "what grows out of a forgotten conversation stays away"


def test_what_expires_from_the_history_stays_in_the_memory(vault):
    answered("r1", DESCALED)
    synthesize(vault)
    FinishedRequest.objects.all().delete()
    synthesize(vault, 2)
    assert "two months" in Wiki.of(vault).read(PAGE)


def test_records_of_others_that_arrive_while_reading_do_not_lock_the_database(vault, monkeypatch):
    """A read that is left open would turn the next write into "database is locked" once another process has written."""
    for number in range(4):
        answered(f"r{number}", (f"Question {number} about the Lelit Anna?", f"Answer {number} on the Lelit Anna."))
    monkeypatch.setattr(history, "BATCH", 1)
    assert history.read(vault).added == 4
