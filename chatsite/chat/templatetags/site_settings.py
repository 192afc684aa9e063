"""The site's own settings for templates whose `site` is somebody else's: allauth gives its pages one of that name."""

from __future__ import annotations

from django import template
from django.conf import settings

from chatsite.site_config import SiteConfig

register = template.Library()


@register.simple_tag
def site_settings() -> SiteConfig:
    config: SiteConfig = settings.SMOLFLEET
    return config


@register.simple_tag
def sends_mail() -> bool:
    """Whether this site can send mail; without it nobody can reset a password alone."""
    return bool(settings.EMAIL_HOST)
