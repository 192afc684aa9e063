"""For templates of any page that leads to review: whether there is something to lead to. The policy is asked afresh."""

from __future__ import annotations

from uuid import UUID

from django import template

from chatsite.review import actions

register = template.Library()


@register.simple_tag
def review_policy() -> str:
    """`off`, `reported` or `reason`."""
    return actions.policy().value


@register.simple_tag
def may_review(user: object) -> bool:
    return actions.may_review(user)


@register.simple_tag
def may_open(user: object, conversation_id: UUID | None) -> bool:
    """Whether the conversation's page of review is there for `user`; there is none for what has no conversation."""
    return actions.allowed(user, conversation_id) if conversation_id else False
