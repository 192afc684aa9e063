"""What pages about the second factor say of the rules: `{% second_factor_is_asked as is_asked %}`."""

from __future__ import annotations

from django import template
from django.template import Context

from chatsite.rules import second_factor

register = template.Library()


@register.simple_tag(takes_context=True)
def second_factor_is_asked(context: Context) -> bool:
    """Whether whoever sees this page must have a second factor."""
    return second_factor.is_asked_of(context["request"].user)


@register.simple_tag(takes_context=True)
def came_for(context: Context) -> str:
    """Where they wanted to go when they were sent to set up a factor; empty when they came by themselves."""
    return str(context["request"].session.get(second_factor.CAME_FOR, ""))
