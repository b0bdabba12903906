"""Schedules against a moved clock: daylight saving, missed nights, overlap, pause, two schedulers."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from django.db import connection

from mlxplatform.accounts import keys, quotas
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.models import Job
from mlxplatform.operations import erasure
from mlxplatform.schedules import cron, service, starters
from mlxplatform.schedules.models import Firing, Schedule
from workers.tasks.payer import Payer

UTC = dt.UTC


def utc(text):
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.fixture(autouse=True)
def _kind():
    kinds.register(kinds.JobKind("scheduled_test", "tests.fixtures.job_kinds:nothing"))
    starters.register(
        "scheduled_test",
        lambda config, project: None,
        lambda config, project, by, key: jobs.submit(
            "scheduled_test", config, project=project, created_by=by, idempotency_key=key
        ),
    )
    yield
    starters._starters.pop("scheduled_test")


def make(expression="0 3 * * *", at="2026-01-01T02:00", **fields):
    schedule = Schedule.objects.create(**{"name": "night", "kind": "scheduled_test", "cron": expression, **fields})
    schedule.next_at = cron.next_time(schedule.cron, schedule.timezone, utc(at))
    schedule.save()
    return schedule


def end(job_id):
    Job.objects.filter(pk=job_id).update(state="done")


def outcomes(schedule):
    return list(schedule.firings.order_by("due_at").values_list("outcome", flat=True))


def test_a_time_that_a_clock_change_skips_happens_right_after_the_gap():
    times = cron.upcoming("30 2 * * *", "Europe/Berlin", utc("2026-03-28T12:00"), 2)
    assert times == [utc("2026-03-29T01:00"), utc("2026-03-30T00:30")]


def test_a_time_that_a_clock_change_repeats_happens_once():
    times = cron.upcoming("30 2 * * *", "Europe/Berlin", utc("2026-10-24T12:00"), 3)
    assert [time.date() for time in times] == [dt.date(2026, 10, 25), dt.date(2026, 10, 26), dt.date(2026, 10, 27)]
    assert len(set(times)) == 3


@pytest.mark.parametrize(
    ("until", "newest"),
    [
        ("2026-03-29T01:00", "2026-03-29T01:00"),
        ("2026-03-29T00:59:59", "2026-03-28T01:30"),
        ("2026-10-25T00:30", "2026-10-25T00:30"),
        ("2026-10-25T01:45", "2026-10-25T00:30"),
        ("2026-10-26T01:29:59", "2026-10-25T00:30"),
    ],
)
def test_the_newest_time_that_has_passed(until, newest):
    assert cron.latest_time("30 2 * * *", "Europe/Berlin", utc(until)) == utc(newest)


def test_local_times_follow_their_zone():
    assert cron.next_time("0 3 * * *", "Europe/Lisbon", utc("2026-07-01T00:00")) == utc("2026-07-01T02:00")
    assert cron.next_time("0 3 * * *", "Asia/Tokyo", utc("2026-07-01T00:00")) == utc("2026-07-01T18:00")


def test_every_quarter_hour_keeps_its_pace_across_a_clock_change():
    times = cron.upcoming("*/15 * * * *", "Europe/Berlin", utc("2026-10-24T23:50"), 12)
    assert {b - a for a, b in pairwise(times)} == {dt.timedelta(minutes=15)}


@pytest.mark.parametrize(
    ("expression", "zone", "field"),
    [
        ("", "UTC", "cron"),
        ("* * * *", "UTC", "cron"),
        ("61 * * * *", "UTC", "cron"),
        ("a b c d e", "UTC", "cron"),
        ("* * * * * *", "UTC", "cron"),
        ("0 3 * * *", "Mars/Olympus", "timezone"),
        ("0 3 * * *", "../../etc/passwd", "timezone"),
        ("0 3 * * *", "", "timezone"),
        ("* " * 99, "UTC", "cron"),
    ],
)
def test_what_cannot_be_read_names_its_field(expression, zone, field):
    with pytest.raises(cron.BadSchedule) as caught:
        cron.upcoming(expression, zone, utc("2026-01-01T00:00"))
    assert caught.value.field == field and "cronsim" not in caught.value.message.lower()


def test_a_date_that_never_comes_is_refused():
    with pytest.raises(cron.BadSchedule, match="never comes"):
        cron.next_time("0 0 30 2 *", "UTC", utc("2026-01-01T00:00"))


@pytest.mark.django_db(transaction=True)
class TestFiring:
    def test_a_due_time_starts_one_job_and_sets_the_next(self):
        schedule = make()
        assert service.tick(utc("2026-01-01T02:59:59")) == 0
        assert service.tick(utc("2026-01-01T03:00:01")) == 1
        assert service.tick(utc("2026-01-01T03:00:02")) == 0
        schedule.refresh_from_db()
        assert schedule.next_at == utc("2026-01-02T03:00")
        job = Job.objects.get()
        assert (job.kind, job.id, job.created_by) == ("scheduled_test", schedule.last_job, f"schedule:{schedule.id}")

    def test_the_key_that_made_a_schedule_pays_for_it_also_when_the_schedule_is_gone(self):
        key, _ = keys.create("nightly")
        schedule = make(created_by=f"key:{key.id}")
        service.tick(utc("2026-01-01T03:00:01"))
        job = Job.objects.get()
        schedule.delete()
        assert Payer.of(job.id).key_id == key.id
        assert erasure.holdings("default", f"key:{key.id}") == {"jobs": 1}
        assert Payer.of(jobs.submit("scheduled_test", {}, created_by=f"user:schedule:x/key:{key.id}").id).key_id == ""

    @pytest.mark.parametrize("ending", ["revoked", "deleted", "spent"])
    def test_a_key_that_may_order_nothing_more_starts_nothing_through_its_schedule(self, ending, monkeypatch, broker):
        monkeypatch.setattr(starters, "SPENDING", {"scheduled_test"})
        key, _ = keys.create("nightly", quota=keys.Quota(tokens_per_day=10))
        schedule = make(created_by=f"key:{key.id}")
        if ending == "revoked":
            keys.revoke(key)
        elif ending == "deleted":
            key.delete()
        else:
            quotas.spend_now(key.id, 10)
        assert service.tick(utc("2026-01-01T03:00")) == 0 and not Job.objects.exists()
        schedule.refresh_from_db()
        assert outcomes(schedule) == ["failed"] and schedule.next_at == utc("2026-01-02T03:00")
        assert "key" in schedule.firings.get().note
        with pytest.raises(Refusal):
            service.run_now(schedule, schedule.created_by)
        assert service.run_now(schedule, "user:admin").outcome == "started"  # a person pays for themselves

    def test_two_schedulers_fire_a_time_once(self):
        make()

        def tick(_):
            try:
                return service.tick(utc("2026-01-01T03:00:01"))
            finally:
                connection.close()

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(tick, range(4))) == 1
        assert Job.objects.count() == 1

    def test_missed_nights_run_once_after_sleep(self):
        schedule = make(misfire="run_once")
        assert service.tick(utc("2026-01-05T09:00")) == 1
        assert service.tick(utc("2026-01-05T09:01")) == 0
        schedule.refresh_from_db()
        assert schedule.next_at == utc("2026-01-06T03:00") and Job.objects.count() == 1
        firing = schedule.firings.get()
        assert firing.note == "late by 6 h; missed since 2026-01-01 03:00 UTC" and firing.due_at == utc("2026-01-05T03:00")

    def test_missed_nights_are_skipped_when_the_policy_says_so(self):
        schedule = make(misfire="skip")
        assert service.tick(utc("2026-01-05T09:00")) == 0
        assert Job.objects.count() == 0
        firing = schedule.firings.get()
        assert (
            firing.outcome == "skipped"
            and firing.note == "missed by 6 h; the policy is to skip; missed since 2026-01-01 03:00 UTC"
        )
        assert service.tick(utc("2026-01-06T03:00:10")) == 1

    @pytest.mark.parametrize("misfire", ["skip", "run_once"])
    def test_who_wakes_in_time_for_the_newest_night_runs_whatever_was_missed_before(self, misfire):
        schedule = make(misfire=misfire)
        assert service.tick(utc("2026-01-05T03:02")) == 1
        firing = schedule.firings.get()
        assert (firing.outcome, firing.due_at) == ("started", utc("2026-01-05T03:00"))
        assert firing.note == "in time; missed since 2026-01-01 03:00 UTC"

    def test_a_little_late_is_in_time(self):
        make(misfire="skip", grace_seconds=60)
        assert service.tick(utc("2026-01-01T03:00:59")) == 1

    def test_runs_never_overlap(self):
        schedule = make("0 * * * *")
        service.tick(utc("2026-01-01T03:00"))
        assert service.tick(utc("2026-01-01T04:00")) == 0
        assert outcomes(schedule) == ["started", "skipped"]
        assert "still queued" in schedule.firings.first().note
        end(Job.objects.get().id)
        assert service.tick(utc("2026-01-01T05:00")) == 1

    def test_a_paused_schedule_rests_and_makes_nothing_up(self):
        schedule = make()
        service.set_paused(schedule, True)
        assert schedule.next_at is None and service.tick(utc("2030-01-01T00:00")) == 0
        service.set_paused(schedule, False)
        assert schedule.next_at > dt.datetime.now(UTC)

    def test_run_now_works_while_paused_and_refuses_overlap(self):
        schedule = make()
        service.set_paused(schedule, True)
        firing = service.run_now(schedule, "user:ann")
        assert firing.outcome == "started" and Job.objects.get().created_by == "user:ann"
        with pytest.raises(Refusal, match="still queued"):
            service.run_now(schedule, "user:ann")
        assert Job.objects.count() == 1

    def test_a_refused_job_is_a_recorded_failure_and_the_next_time_comes(self):
        def refuse(*args):
            raise Refusal(404, "vault_not_found", "there is no such vault")

        starters.register("scheduled_test", lambda config, project: None, refuse)
        schedule = make()
        assert service.tick(utc("2026-01-01T03:00")) == 0
        schedule.refresh_from_db()
        assert outcomes(schedule) == ["failed"] and schedule.next_at == utc("2026-01-02T03:00")

    def test_a_kill_between_the_steps_fires_once(self, monkeypatch):
        make()
        with monkeypatch.context() as patch:
            patch.setattr(service, "_record", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                service.tick(utc("2026-01-01T03:00"))
        assert Job.objects.count() == 0
        assert service.tick(utc("2026-01-01T03:00:05")) == 1
        assert Job.objects.count() == 1

    def test_old_firings_are_dropped(self, monkeypatch):
        monkeypatch.setattr(service, "FIRINGS_KEPT", 3)
        schedule = make("0 * * * *", misfire="skip")
        for hour in range(3, 9):
            service.tick(utc(f"2026-01-01T{hour:02}:00"))
        assert Firing.objects.filter(schedule=schedule).count() == 3

    def test_the_scheduler_process_has_the_chore(self):
        from workers.scheduler import chores

        assert "schedules" in [chore.name for chore in chores()]


@pytest.mark.django_db
def test_every_kind_a_client_can_order_can_be_scheduled_and_is_checked_first():
    internal = {"memory_import", "dataset_preview", "dataset_import", "batch_finish"}
    internal |= {"adopt", "dataset_push"}  # of one thing that exists now, not of what there will be then
    orderable = {name for name in kinds.names() if name not in internal and "." not in name and "test" not in name}
    assert orderable <= set(starters.names())
    for kind in orderable:
        with pytest.raises(Refusal):
            starters.check(kind, {"no_such_field": 1}, "default")
