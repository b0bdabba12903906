"""A chunk's life in SQL: whoever dies, stops or comes late, each call is answered once."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta

import msgspec
import pytest
import redis
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.inference.contract import InferenceRequest, Message, Sampling, Usage
from mlxplatform.inference.models import Host
from mlxplatform.rows import chunks, sweep
from mlxplatform.rows.contract import Output, RowError, RowRequest, fingerprint
from mlxplatform.rows.models import RowCall, RowChunk

pytestmark = pytest.mark.django_db(transaction=True)

JOB = "job_0000000000000001"


def request(text: str) -> InferenceRequest:
    return InferenceRequest(id="", model="tiny", messages=[Message("user", text)])


def wave(*numbers: int) -> list[RowRequest]:
    return [RowRequest(f"{n}:a", n, request(f"question {n}")) for n in numbers]


def admit(*numbers: int, size: int = 32, job: str = JOB, **options: object) -> chunks.Admission:
    return chunks.admit(job, "local", wave(*numbers), chunk_size=size, **options)  # type: ignore[arg-type]


def answer(call: chunks.OpenCall, text: str = "yes") -> chunks.Outcome:
    return chunks.Outcome(call.id, output=Output(text=text, usage=Usage(3, 5)))


def claimed(admission: chunks.Admission, owner: str = "a") -> tuple[chunks.Sending, list[chunks.OpenCall]]:
    sending = admission.sendings[0]
    calls = chunks.claim(sending.chunk, sending.fence, owner)
    assert calls is not None
    return sending, calls


def test_a_request_is_known_again_by_all_it_asks() -> None:
    def biased(bias: dict[int, float] | None) -> str:
        return fingerprint(msgspec.structs.replace(request("q"), id=secrets.token_hex(4), sampling=Sampling(logit_bias=bias)))

    assert biased({5: 1.0, 7: -1.0}) == biased({7: -1.0, 5: 1.0})
    assert len({biased(None), biased({5: 1.0}), biased({5: 2.0}), biased({6: 1.0})}) == 4


def test_calls_are_cut_into_chunks() -> None:
    admission = admit(*range(5), size=2)
    assert [RowChunk.objects.get(id=s.chunk).size for s in admission.sendings] == [2, 2, 1]
    assert len(admission.waiting) == 5


def test_a_message_delivered_twice_is_run_once() -> None:
    sending, _ = claimed(admit(1, 2))
    assert chunks.claim(sending.chunk, sending.fence, "b") is None


def test_results_need_the_fence() -> None:
    sending, calls = claimed(admit(1))
    [again] = chunks.requeue_orphan(sending.chunk, sending.fence)
    assert not chunks.commit(sending.chunk, sending.fence, [answer(calls[0], "stale")], done=True)
    fresh = chunks.claim(again.chunk, again.fence, "b")
    assert fresh is not None
    assert chunks.commit(again.chunk, again.fence, [answer(fresh[0], "fresh")], done=True)
    [(_, result)] = chunks.finished_among([calls[0].id])
    assert result.output is not None and result.output.text == "fresh"


def test_a_new_owner_gets_only_what_is_open() -> None:
    sending, calls = claimed(admit(1, 2, 3))
    chunks.commit(sending.chunk, sending.fence, [answer(calls[0])], done=False)
    [again] = chunks.requeue_orphan(sending.chunk, sending.fence)
    assert [call.key for call in chunks.claim(again.chunk, again.fence, "b") or []] == ["2:a", "3:a"]


def test_asking_again_returns_the_answer_without_running() -> None:
    sending, calls = claimed(admit(1, 2))
    failed = chunks.Outcome(calls[1].id, error=RowError("context_length_exceeded", "too long", 400))
    chunks.commit(sending.chunk, sending.fence, [answer(calls[0]), failed], done=True)
    admission = admit(1, 2)
    assert not admission.sendings
    by_key = {result.key: result for result in admission.finished}
    assert by_key["1:a"].reused and by_key["1:a"].output is not None
    assert by_key["2:a"].error is not None and by_key["2:a"].error.status == 400


def test_a_changed_request_under_the_same_key_runs_again() -> None:
    sending, calls = claimed(admit(1))
    chunks.commit(sending.chunk, sending.fence, [answer(calls[0])], done=True)
    changed = [RowRequest("1:a", 1, request("something else"))]
    assert len(chunks.admit(JOB, "local", changed, chunk_size=8).sendings) == 1


def test_an_earlier_jobs_answers_count_for_the_same_question_only() -> None:
    sending, calls = claimed(admit(1, 2))
    chunks.commit(sending.chunk, sending.fence, [answer(c) for c in calls], done=True)
    asked = [wave(1)[0], RowRequest("2:a", 2, request("edited"))]
    admission = chunks.admit("job_2", "local", asked, ancestors=[JOB], chunk_size=8)
    assert [result.key for result in admission.finished] == ["1:a"]
    assert list(admission.waiting.values()) == ["2:a"]


def test_cancelled_calls_can_be_taken_up_again() -> None:
    sending, calls = claimed(admit(1, 2))
    chunks.commit(sending.chunk, sending.fence, [answer(calls[0])], done=False)
    chunks.cancel_job(JOB)
    assert chunks.held_among([(sending.chunk, sending.fence)]) == set()
    assert not chunks.commit(sending.chunk, sending.fence, [answer(calls[1])], done=True)
    admission = admit(1, 2)
    assert [r.key for r in admission.finished] == ["1:a"]
    assert len(admission.sendings) == 1


def test_a_row_that_kills_its_worker_is_found_and_given_up_alone() -> None:
    def die(sending: chunks.Sending) -> list[chunks.Sending]:
        assert chunks.claim(sending.chunk, sending.fence, "x") is not None
        return chunks.requeue_orphan(sending.chunk, sending.fence)

    [once] = die(admit(1, 2, 3).sendings[0])
    singles = die(once)
    assert len(singles) == 3
    assert die(singles[0]) == []
    poisoned = RowCall.objects.get(key="1:a")
    assert poisoned.state == "failed" and poisoned.error["code"] == "poisoned"
    for single in singles[1:]:
        calls = chunks.claim(single.chunk, single.fence, "x")
        assert calls is not None and chunks.commit(single.chunk, single.fence, [answer(calls[0])], done=True)
    assert RowCall.objects.filter(state="done").count() == 2


def test_a_death_after_progress_is_forgiven() -> None:
    sending = admit(1, 2, 3, 4).sendings[0]
    for _ in range(3):
        calls = chunks.claim(sending.chunk, sending.fence, "x")
        assert calls is not None
        chunks.commit(sending.chunk, sending.fence, [answer(calls[0])], done=False)
        [sending] = chunks.requeue_orphan(sending.chunk, sending.fence)
        assert RowChunk.objects.get(id=sending.chunk).deaths == 0


class Watch:
    """A sweeper whose clock the test moves; it looks every two seconds as the scheduler does."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sweeper = sweep.Sweeper(lambda: self.now)
        self.sweep = self.sweeper.sweep

    def pass_by(self, seconds: float) -> int:
        sent = 0
        for _ in range(int(seconds / 2)):
            self.now += 2
            sent += self.sweep()
        return sent


@pytest.fixture
def watch(broker: redis.Redis) -> Watch:
    return Watch()


def alive(broker: redis.Redis, host: str, *models: str) -> None:
    """What a living host publishes of itself, and its row."""
    Host.objects.get_or_create(name=host)
    entries = [{"id": model, "kind": "chat", "capabilities": ["chat"]} for model in models]
    broker.set(queues.host_key(host), json.dumps({"host": host, "models": entries, "engine": {"state": "ready"}}))


def messages(broker: redis.Redis, host: str) -> int:
    return int(broker.hlen(f"{DRAMATIQ_NAMESPACE}:{queues.rows(host)}.msgs"))


def test_the_sweeper_sends_a_silent_owners_chunk_again(watch: Watch, broker: redis.Redis) -> None:
    sending, _ = claimed(admit(1))
    assert watch.pass_by(sweep.OWNER_SILENCE) == 0
    chunks.beat([(sending.chunk, sending.fence)])
    assert watch.pass_by(sweep.OWNER_SILENCE) == 0
    assert watch.pass_by(4) == 1
    assert RowChunk.objects.get().fence == sending.fence + 1
    assert messages(broker, "local") == 1


def test_a_wrong_clock_and_a_sleeping_sweeper_take_no_chunk_away(watch: Watch) -> None:
    claimed(admit(1))
    RowChunk.objects.update(heartbeat_at=timezone.now() - timedelta(hours=5))
    assert watch.sweep() == 0
    watch.now += 3600
    assert watch.sweep() == 0


def test_wiped_messages_are_sent_again_and_present_ones_are_not(watch: Watch, broker: redis.Redis) -> None:
    from mlxplatform.rows.sending import send

    send(admit(1, 2, size=1).sendings)
    RowChunk.objects.update(sent_at=timezone.now() - timedelta(seconds=sweep.SENDING_GRACE + 1))
    assert watch.sweep() == 0
    broker.flushall()
    assert watch.sweep() == 2


def test_a_starting_host_frees_what_its_predecessor_ran_or_had_fetched(broker: redis.Redis) -> None:
    claimed(admit(1, 2, size=1))
    assert sweep.reclaim("elsewhere") == 0
    assert sweep.reclaim("local") == 2
    assert messages(broker, "local") == 2


def test_a_chunk_given_back_is_sent_when_due(watch: Watch) -> None:
    sending, _ = claimed(admit(1))
    chunks.give_back(sending.chunk, sending.fence, delay_s=60)
    assert watch.sweep() == 0
    RowChunk.objects.update(due_at=timezone.now())
    assert watch.sweep() == 1


def test_a_chunk_put_off_before_the_clock_was_set_back_is_sent(watch: Watch) -> None:
    sending, _ = claimed(admit(1))
    chunks.give_back(sending.chunk, sending.fence, delay_s=3600)
    assert watch.sweep() == 1


def test_chunks_of_a_dead_host_move_to_a_living_one_that_has_the_model(watch: Watch, broker: redis.Redis) -> None:
    sending, calls = claimed(admit(1, 2, 3, size=2))
    chunks.commit(sending.chunk, sending.fence, [answer(calls[0])], done=False)
    alive(broker, "other", "another-model")
    watch.pass_by(sweep.HOST_SILENCE * 2)
    assert set(RowChunk.objects.values_list("host", flat=True)) == {"local"}, "moved to a host without the model"
    alive(broker, "other", "tiny")
    watch.pass_by(4)
    assert set(RowChunk.objects.values_list("host", "state")) == {("other", "queued")}
    assert messages(broker, "other") == 2
    assert not chunks.commit(sending.chunk, sending.fence, [answer(calls[1])], done=True)
    moved = RowChunk.objects.get(id=sending.chunk)
    assert [call.key for call in chunks.claim(moved.id, moved.fence, "other:1") or []] == ["2:a"]


def test_chunks_of_a_living_host_stay_however_long_they_wait(watch: Watch, broker: redis.Redis) -> None:
    admit(1)
    alive(broker, "local", "tiny")
    alive(broker, "other", "tiny")
    watch.pass_by(sweep.HOST_SILENCE * 2)
    assert set(RowChunk.objects.values_list("host", flat=True)) == {"local"}
