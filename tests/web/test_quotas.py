"""Quotas: whose rules hold, what fits, and that they are never overdrawn, whoever asks by whatever way at once."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.api import completion
from chatsite.chat import errors
from chatsite.chat.actions import quote, temporary
from chatsite.chat.actions import send as actions_send
from chatsite.chat.generation import record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Generation, Message
from chatsite.rules.effective import quotas_of, rules_of
from chatsite.rules.models import GroupRules, SiteRules
from chatsite.usage import quotas
from chatsite.usage.calendar import Scope
from inference.messages.generation import FinishReason
from tests.web.api_worker import kit
from tests.web.chat_worker import StepWorker
from tests.web.spending import body, cap_of, group, limit, person, send, spend  # noqa: F401  (fixtures)
from tests.web.test_actions import answer, together

# -- whose rules hold


def test_own_rule_beats_groups_the_most_generous_group_beats_the_site(alice: User) -> None:
    assert not quotas_of(alice)
    SiteRules.objects.create(id=1, tokens_per_day=100, tokens_per_month=1_000)
    assert (quotas_of(alice).tokens_per_day, quotas_of(alice).tokens_per_month) == (100, 1_000)
    for name, per_day in (("small", 200), ("large", 300), ("silent", None)):
        group = Group.objects.create(name=name)
        GroupRules.objects.create(group=group, tokens_per_day=per_day, pool_per_month=7 if name == "large" else None)
        alice.groups.add(group)
    found = quotas_of(alice)
    assert (found.tokens_per_day, found.tokens_per_month) == (300, 1_000)
    assert [(pool.group_name, pool.tokens_per_day, pool.tokens_per_month) for pool in found.pools] == [
        ("large", None, 7)
    ]
    limit(alice, tokens_per_day=50)
    found = quotas_of(alice)
    assert (found.tokens_per_day, found.tokens_per_month) == (50, 1_000)
    rules = rules_of(alice)
    assert (rules.tokens_per_day, rules.tokens_per_month, rules.pools) == (50, 1_000, found.pools)


def test_admission_costs_one_query_without_limits_three_with_ones_own_and_four_with_a_groups(person: User) -> None:
    def num_queries() -> int:
        with transaction.atomic(), CaptureQueriesContext(connection) as queries:
            quotas.reserve(person, wanted=10, least=10)
        return len(queries)

    assert num_queries() == 1
    limit(person, tokens_per_day=1_000)
    assert num_queries() == 3
    for name in "ab":
        group = Group.objects.create(name=name)
        GroupRules.objects.create(group=group, pool_per_day=1_000)
        person.groups.add(group)
    assert num_queries() == 4


# -- what fits


def test_without_limits_everything_is_reserved_all_the_same(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    generation = send(person)
    request = generation_request.frozen_request_of(generation)
    assert request.prompt_tokens > 0
    assert generation.reserved_tokens == request.prompt_tokens + 600


@pytest.mark.parametrize(
    ("left", "asked", "cap"),
    [
        (1_000, None, 600),
        (600, None, 600),
        (599, None, 599),
        (64, None, 64),
        (63, None, None),
        (600, 600, 600),
        (599, 600, None),
        (10, 10, 10),
        (9, 10, None),
    ],
)
def test_an_answer_is_made_shorter_where_its_cap_is_the_sites_and_refused_where_it_was_asked_for(
    person: User, left: int, asked: int | None, cap: int | None
) -> None:
    limit(person, tokens_per_day=5_000)
    spend(person, 5_000 - left)
    if cap is None:
        with pytest.raises(errors.QuotaExceeded):
            send(person, max_tokens=asked)
        assert not Generation.objects.exists()
        assert not Message.objects.exists()
    else:
        generation = send(person, max_tokens=asked)
        assert (cap_of(generation), generation.reserved_tokens) == (cap, cap)


def test_a_cap_of_the_conversation_or_of_the_program_is_asked_for(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    limit(person, tokens_per_day=300)
    capped = actions_send.start_conversation(person, max_tokens=500)
    with pytest.raises(errors.QuotaExceeded):
        actions_send.send_message(person, capped, "hi")
    with pytest.raises(errors.QuotaExceeded):
        temporary.ask(person, [], "hi", max_tokens=500)
    with pytest.raises(errors.QuotaExceeded):
        completion.admit(person, body(max_completion_tokens=500))
    admitted = completion.admit(person, body())
    row = Generation.objects.get(pk=admitted.generation_id)
    assert row.reserved_tokens == 300
    assert worker.claim().claim.request.sampling.max_tokens == cap_of(row)


def test_the_prompt_counts_and_must_leave_room_for_an_answer(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    prompt = generation_request.frozen_request_of(send(person)).prompt_tokens
    Generation.objects.update(status="done", ended_at=timezone.now())
    limit(person, tokens_per_day=prompt + 63)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.facts["needed"] == prompt + 64
    limit(person, tokens_per_day=prompt + 64)
    generation = send(person)
    assert (cap_of(generation), generation.reserved_tokens) == (64, prompt + 64)


def test_a_site_with_short_answers_needs_no_more_room_than_they_take(person: User, site: Callable[..., None]) -> None:
    site(max_completion_tokens=20)
    limit(person, tokens_per_day=20)
    assert send(person).reserved_tokens == 20


def test_a_recited_document_costs_its_prompt_alone(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes())
    limit(person, tokens_per_day=100)
    generation = quote.quote(person, actions_send.start_conversation(person)).generation
    assert generation.reserved_tokens == generation_request.frozen_request_of(generation).prompt_tokens < 100


# -- at once


@pytest.mark.parametrize(("asked", "caps"), [(600, [600]), (None, [400, 600]), (300, [300, 300, 300])])
def test_parallel_sends_are_never_more_than_what_is_left(person: User, asked: int | None, caps: list[int]) -> None:
    limit(person, tokens_per_day=10_000)
    spend(person, 9_000)
    results = together(*[partial(send, person, max_tokens=asked)] * 3)
    admitted = [result for result in results if isinstance(result, Generation)]
    assert sorted(generation.reserved_tokens for generation in admitted) == caps
    refused = [result for result in results if not isinstance(result, Generation)]
    assert all(isinstance(result, errors.QuotaExceeded) for result in refused), refused
    assert sum(caps) <= 1_000


def test_chat_api_and_temporary_share_what_is_left_also_at_once(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=2_000)
    limit(person, tokens_per_day=1_000)
    results = together(
        lambda: send(person, max_tokens=600),
        lambda: temporary.ask(person, [], "hi", max_tokens=600),
        lambda: completion.admit(person, body(max_tokens=600)),
    )
    refused = [result for result in results if isinstance(result, errors.QuotaExceeded)]
    assert len(refused) == 2, results
    assert Generation.objects.get().reserved_tokens <= 1_000


def test_sends_while_answers_end_never_see_them_as_free(person: User, worker: StepWorker) -> None:
    """One statement reads what is used and what is held: an answer that ends just then is one of the two."""
    limit(person, tokens_per_day=14)  # what one answer of this worker costs
    for _ in range(4):
        send(person, max_tokens=14)
        attempt = worker.claim().start()
        attempt.finish()
        _recorded, refused = together(partial(record.record, attempt.id), partial(send, person, max_tokens=1))
        assert isinstance(refused, errors.QuotaExceeded), refused
        limit(person, tokens_per_day=quotas.standing(person).day.used + 14)


def test_a_failed_answer_gives_back_what_it_did_not_cost(person: User) -> None:
    limit(person, tokens_per_day=1_000)
    first = send(person, max_tokens=600)
    with pytest.raises(errors.QuotaExceeded):
        send(person, max_tokens=600)
    record.end_without_log(first.pk, FinishReason.ERROR)
    second = send(person, max_tokens=600)
    actions_send.stop(person, second)
    record.record(second.pk)
    send(person, max_tokens=600)
    assert quotas.standing(person).day.reserved == 600


def test_an_answer_costs_what_it_took_once_it_has_ended(person: User, worker: StepWorker) -> None:
    limit(person, tokens_per_day=1_000, tokens_per_month=2_000)
    send(person)
    standing = quotas.standing(person)
    assert (standing.day.used, standing.day.reserved, standing.day.left) == (0, 600, 400)
    answer(worker, "yes")
    standing = quotas.standing(person)
    assert (standing.day.used, standing.day.reserved, standing.day.left) == (14, 0, 986)
    assert (standing.month.used, standing.month.left) == (14, 1_986)


def test_a_pool_is_shared_by_its_members_also_at_once(person: User, bob: User, group: Group) -> None:
    GroupRules.objects.create(group=group, pool_per_day=1_000)
    results = together(*[partial(send, user, max_tokens=600) for user in (person, bob, person, bob)])
    assert len([result for result in results if isinstance(result, Generation)]) == 1
    (refused, *_) = [result for result in results if isinstance(result, errors.QuotaExceeded)]
    assert (refused.facts["group"], refused.facts["scope"], refused.facts["limit"]) == ("Physics", "day", 1_000)
    assert send(User.objects.create_user("stranger"), max_tokens=600)


def test_members_in_the_same_two_groups_never_wait_for_each_other_for_ever(
    person: User, bob: User, group: Group
) -> None:
    other = Group.objects.create(name="Chemistry")
    bob.groups.add(other)
    person.groups.add(other)
    for each in (group, other):
        GroupRules.objects.create(group=each, pool_per_day=10_000)
    results = together(*[partial(send, user, max_tokens=10) for user in (person, bob) * 3])
    assert all(isinstance(result, Generation) for result in results), results


def test_the_pool_of_a_month_and_ones_own_day_both_hold(person: User, bob: User, group: Group) -> None:
    GroupRules.objects.create(group=group, pool_per_month=1_000, tokens_per_day=500)
    spend(bob, 700)
    assert send(person).reserved_tokens == 300
    Generation.objects.all().delete()
    spend(bob, 300)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.message.startswith("The group Physics has used its 1,000 tokens of this month.")
    (pool,) = quotas.standing(person).pools
    assert (pool.scope, pool.limit, pool.used, pool.left) == (Scope.MONTH, 1_000, 1_000, 0)
